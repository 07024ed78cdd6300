// Initiate the replica set and make its users, once. Runs in the network of the first member, where the localhost exception
// allows the first user to be made. Run again, it changes nothing.
const fs = require("fs");
const secret = (name) => fs.readFileSync(`/run/secrets/${name}`, "utf8").trim();

const names = (process.env.MEMBERS ?? "mongo1:27017,mongo2:27017,mongo3:27017").split(",");
const members = names.map((host, n) => ({ _id: n, host, priority: n ? 1 : 2 }));
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
    if (tries > 120) throw new Error(names[0] + " does not become the primary.");
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
