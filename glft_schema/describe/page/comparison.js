// Search in the tables of a comparison, and the order of tensors.

for (const table of document.querySelectorAll(".records")) {
  const part = table.id.split("-")[0];
  const rows = [...table.tBodies[0].rows];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const search = () => {
    const found = matcher(byId(`${part}-search`).value);
    for (const row of rows) row.hidden = !found(texts.get(row));
    byId(`${part}-count`).textContent = `${count(rows.filter((row) => !row.hidden).length)} of ${count(rows.length)}`;
  };
  byId(`${part}-search`).addEventListener("input", settled(search));
  search();
  const heads = [...table.tHead.rows[0].cells].filter((head) => head.querySelector("button"));
  for (const [column, head] of heads.entries()) {
    head.firstChild.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", other !== head ? "none" : down ? "descending" : "ascending");
      const text = (row) => row.cells[column].textContent;
      const number = (row) => (text(row) === "equal" ? 0 : Number.parseFloat(text(row).replace("inf", "Infinity")));
      const compare = (one, other) => (head.className ? number(one) - number(other) || 0 : natural(text(one), text(other)));
      const [known, empty] = [true, false].map((is) => rows.filter((row) => (text(row) !== "") === is));
      table.tBodies[0].append(...known.sort((one, other) => (down ? -1 : 1) * compare(one, other)), ...empty);
    });
  }
}
