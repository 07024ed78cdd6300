// Starts the page, and says so when one of its modules could not be loaded.

try {
  await import("./shell.js");
} catch (error) {
  document.getElementById("not-loaded").classList.add("now");
  document.getElementById("reload").addEventListener("click", (event) => {
    event.preventDefault(); // the link alone would lose the view in the address
    location.reload();
  });
  throw error;
}
