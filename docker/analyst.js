// A user for analysts: reads outputs, reviews, groups and jobs; neither cookies, local storage, tokens nor anything else.
//
//   ANALYST_PASSWORD=... mongosh "$ADMIN_MONGO_URL" docker/analyst.js
//   MONGO_DATABASE=other ANALYST_USER=bob ...      for another database or name
//
// Run again after an update of the service: it brings the role up to date and leaves the password of a user who is there.

const name = process.env.MONGO_DATABASE || "scraping";
const user = process.env.ANALYST_USER || "analyst";
const role = "scrapingAnalyst";
const readable = ["outputs", "reviews", "groups", "jobs"];

const target = db.getSiblingDB(name);
const privileges = readable.map((collection) => ({
  resource: { db: name, collection },
  actions: ["find", "collStats", "listIndexes"],
}));

if (target.getRole(role)) {
  target.updateRole(role, { privileges, roles: [] });
} else {
  target.createRole({ role, privileges, roles: [] });
}

if (target.getUser(user)) {
  target.grantRolesToUser(user, [role]);
} else {
  if (!process.env.ANALYST_PASSWORD) {
    throw new Error("Set ANALYST_PASSWORD.");
  }
  target.createUser({ user, pwd: process.env.ANALYST_PASSWORD, roles: [role] });
}
print(`${user} may read ${readable.join(", ")} of ${name}`);
