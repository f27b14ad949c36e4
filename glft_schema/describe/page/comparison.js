// The searchable, sortable table of tensors that differ.

const body = document.querySelector(".sortable tbody");
const heads = [...document.querySelectorAll(".sortable thead th")];
const rows = [...body.rows];

function search() {
  const found = matcher(byId("tensor-search").value);
  for (const row of rows) row.hidden = !found(row.textContent.toLowerCase());
  byId("tensor-count").textContent = `${count(rows.filter((row) => !row.hidden).length)} of ${plural(rows.length, "tensor")}`;
}

// Sorts by a column, or the other way if it is sorted by it. Rows without a value are the last.
function sort(column) {
  const sign = heads[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : sign < 0 ? "descending" : "ascending"));
  const text = (row) => row.cells[column].textContent;
  const number = (row) => (text(row) === "equal" ? 0 : Number.parseFloat(text(row).replace("inf", "Infinity")));
  const isNumber = heads[column].className === "number";
  const compare = (one, other) => sign * (isNumber ? number(one) - number(other) || 0 : natural(text(one), text(other)));
  rows.sort((one, other) => !text(one) - !text(other) || compare(one, other));
  body.append(...rows);
}

heads.forEach((head, i) => head.firstChild.addEventListener("click", () => sort(i)));
byId("tensor-search").addEventListener("input", settled(search));
search();
