// Starts the page. When one of its modules could not be loaded, it tries once more, then says so.

const RELOADED = "reloaded"; // in the session: the page was loaded again by itself

try {
  await import("./shell.js");
  sessionStorage.removeItem(RELOADED);
} catch (error) {
  if (sessionStorage.getItem(RELOADED)) {
    document.getElementById("not-loaded").classList.add("now");
    document.getElementById("reload").addEventListener("click", (event) => {
      event.preventDefault(); // the link alone would lose the view in the address
      location.reload();
    });
    throw error;
  }
  sessionStorage.setItem(RELOADED, "yes");
  location.reload();
}
