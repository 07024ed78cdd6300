// Chooses columns: search, all or none, and their order by drag or with the arrow keys.

import { choices, label, sample } from "./columns.js";
import { askInDialog } from "./dialogs.js";
import { announce, el } from "./dom.js";

/** Ask which columns to show; `save` gets their paths, a comma between, or "" for the usual ones. */
export function chooseColumns(desk, save) {
  const shown = desk.columns;
  const all = choices(desk.found, shown);
  const list = el("ul", { class: "choices" }, [...shown, ...all.filter((path) => !shown.includes(path))].map((path) => choice(desk, path, shown.includes(path))));
  const search = el("input", {
    type: "search", placeholder: "Search columns", "aria-label": "Search columns", autofocus: true, oninput: () => {
      for (const item of list.children) item.hidden = !item.dataset.path.toLowerCase().includes(search.value.toLowerCase());
    },
  });
  const setAll = (checked) => {
    for (const item of list.children) if (!item.hidden) item.querySelector("input").checked = checked;
  };
  const button = (text, onclick) => el("button", { type: "button", class: "quiet", onclick }, text);
  list.addEventListener("dragover", (event) => dragOver(event, list));
  list.addEventListener("drop", (event) => event.preventDefault());
  const dialog = askInDialog("columns", "Columns", [
    el("div", { class: "choices-tools" }, search, button("All", () => setAll(true)), button("None", () => setAll(false))),
    el("p", { class: "hint" }, "Drag a row, or press Alt with an arrow key on it, to change the order."),
    list,
  ], [
    button("Usual ones", () => {
      dialog.close();
      save("");
    }),
    el("button", { class: "primary" }, "Show these"),
  ], (data) => save(data.getAll("column").join(",")));
}

function choice(desk, path, checked) {
  const item = el("li", {
    "data-path": path, draggable: "true",
    ondragstart: (event) => {
      event.dataTransfer.effectAllowed = "move";
      item.classList.add("dragged");
    },
    ondragend: () => item.classList.remove("dragged"),
    onkeydown: (event) => {
      if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) moveBy(event, item, event.key === "ArrowUp" ? -1 : 1);
    },
  },
    el("label", null,
      el("input", { type: "checkbox", name: "column", value: path, checked }),
      el("span", { class: "text" }, label(path)), el("span", { class: "faint text" }, sample(desk.items[0] ?? {}, path))),
    el("span", { class: "grip", "aria-hidden": "true" }, "⠿"));
  return item;
}

function moveBy(event, item, by) {
  event.preventDefault();
  const other = by < 0 ? item.previousElementSibling : item.nextElementSibling;
  if (!other) return;
  const focused = document.activeElement;
  if (by < 0) other.before(item);
  else other.after(item);
  focused.focus();
  announce(`${label(item.dataset.path)}: place ${[...item.parentElement.children].indexOf(item) + 1}`);
}

function dragOver(event, list) {
  const dragged = list.querySelector(".dragged");
  const over = event.target.closest("li");
  if (!dragged) return;
  event.preventDefault();
  if (!over || over === dragged) return;
  const { top, height } = over.getBoundingClientRect();
  if (event.clientY < top + height / 2) over.before(dragged);
  else over.after(dragged);
}
