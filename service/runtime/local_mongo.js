'use strict';
// Serves the embedded MongoDB engine on a Unix socket below TMPDIR, until standard input ends.
// usage: node local_mongo.js PACKAGE_FOLDER DATA_FOLDER

const fs = require('node:fs');

const [packageFolder, dataFolder] = process.argv.slice(2);
const opening = require(packageFolder).open(dataFolder);

async function stop() {
  setTimeout(() => process.exit(1), 10_000); // a close that hangs must not outlive the service
  await (await opening).close();
  fs.rmdir(process.env.TMPDIR, () => process.exit(0)); // ours and empty by now; a service killed by -9 cannot remove it
}

process.stdin.once('end', stop).once('error', stop).resume();
process.once('SIGTERM', stop);
