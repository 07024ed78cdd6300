// Initiate the replica set and make its users, once. Runs in the network of mongo1, where the localhost exception
// allows the first user to be made. Run again, it changes nothing.
const fs = require("fs");
const secret = (name) => fs.readFileSync(`/run/secrets/${name}`, "utf8").trim();

const members = ["mongo1", "mongo2", "mongo3"].map((name, n) => ({ _id: n, host: `${name}:27017`, priority: n ? 1 : 2 }));
const admin = db.getSiblingDB("admin");
const root = secret("mongo_root_password");

const canLogIn = () => {
  try {
    return Boolean(admin.auth("root", root).ok);
  } catch (error) {
    return false;
  }
};

if (!canLogIn()) {
  try {
    rs.initiate({ _id: "rs0", members });
  } catch (error) {
    if (error.codeName !== "AlreadyInitialized") throw error;
  }
  for (let tries = 0; !db.hello().isWritablePrimary; tries++) {
    if (tries > 120) throw new Error("mongo1 does not become the primary.");
    sleep(500);
  }
  admin.createUser({ user: "root", pwd: root, roles: ["root"] });
  admin.auth("root", root);
}
// Apart from the above, which may have been interrupted.
if (!admin.getUser("service")) {
  admin.createUser({
    user: "service",
    pwd: secret("mongo_service_password"),
    roles: [{ role: "readWrite", db: "scraping" }],
  });
}
print("initiated");
