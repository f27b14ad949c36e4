// The searchable, sortable table of tensors.

const tensors = data.tensors;
const COLUMNS = {
  name: (i) => tensors.names[i],
  type: (i) => data.types[tensors.types[i]].name,
  dims: (i) => tensors.numbers[i],
  bytes: (i) => tensors.bytes[i],
  bits: (i) => bits(i),
  error: (i) => errorOf(i) ?? -1,
  at: (i) => [tensors.files[i], tensors.at[i]],
};
const table = byId("tensor-table");
const lowered = tensors.names.map((name, i) => `${name} ${data.types[tensors.types[i]].name}`.toLowerCase());
let order = tensors.names.map((_, i) => i); // indices of the rows shown
let sorted = { column: "at", down: false };
let selected = -1;

function bits(i) {
  return tensors.numbers[i] ? (8 * tensors.bytes[i]) / tensors.numbers[i] : 0;
}

// The relative error of a tensor; undefined if it was not compared. Infinities come as text.
function errorOf(i) {
  const error = data.errors[i].relative;
  return error === "inf" ? Infinity : error === "nan" ? undefined : error;
}

function dims(i) {
  return tensors.dims[i].length ? tensors.dims[i].map(count).join(" × ") : "one number";
}

const rows = new Rows({
  scroller: byId("tensor-scroller"),
  body: table.tBodies[0],
  head: table.tHead,
  gap: rowSpacer,
  draw: (at) => {
    const i = order[at];
    const type = tensors.types[i];
    const open = make("button", { type: "button", class: "open", tabindex: at === rows.active ? 0 : -1, "aria-haspopup": "dialog" });
    open.append(quoted(tensors.names[i]));
    const row = make(
      "tr",
      { "aria-rowindex": at + 2, "data-tensor": i, class: i === selected ? "selected" : null },
      make("th", { scope: "row" }, open),
      make("td", { class: "kind" }, make("span", { class: `swatch type-${type % 8} dash-${type % 4}` }), data.types[type].name),
      make("td", { class: "dims" }, dims(i)),
      make("td", { class: "bytes" }, count(tensors.bytes[i])),
      make("td", { class: "bits" }, measured(Number(bits(i).toPrecision(4)))),
      data.errors && make("td", { class: "error" }, errorOf(i) === undefined ? "" : `${measured(Number((100 * errorOf(i)).toPrecision(3)))} %`),
      make("td", { class: "at" }, count(tensors.at[i])),
    );
    if (i === selected) open.setAttribute("aria-current", "true");
    return row;
  },
});

function compare(one, other) {
  if (Array.isArray(one)) return one[0] - other[0] || one[1] - other[1];
  return typeof one === "string" ? natural(one, other) : one - other;
}

// Applies search, type and order. Row `keep` stays active if it is still shown.
function arrange(keep = -1) {
  const found = matcher(byId("tensor-search").value);
  const type = byId("tensor-type").value;
  const key = COLUMNS[sorted.column];
  order = tensors.names.map((_, i) => i).filter((i) => found(lowered[i]) && (type === "" || tensors.types[i] === Number(type)));
  const keys = new Map(order.map((i) => [i, key(i)]));
  order.sort((one, other) => (sorted.down ? -1 : 1) * compare(keys.get(one), keys.get(other)) || one - other);
  for (const head of table.tHead.querySelectorAll("th")) {
    const direction = head.dataset.column === sorted.column ? (sorted.down ? "descending" : "ascending") : "none";
    head.setAttribute("aria-sort", direction);
  }
  table.setAttribute("aria-rowcount", order.length + 1);
  byId("tensor-count").textContent = `${count(order.length)} of ${plural(tensors.names.length, "tensor")}`;
  byId("no-tensors").hidden = order.length > 0;
  const at = Math.max(0, order.indexOf(keep));
  if (keep < 0) rows.scroller.scrollTop = 0;
  rows.reset(order.length, at);
}

// Selects a tensor and opens its details. Clears a search that hides it.
function showTensor(i, { scroll = true } = {}) {
  if (!order.includes(i)) {
    byId("tensor-search").value = "";
    byId("tensor-type").value = "";
    arrange(i);
  }
  const before = order.indexOf(selected);
  selected = i;
  const at = order.indexOf(i);
  for (const row of [before, at]) rows.drawn.delete(row);
  rows.active = at;
  rows.draw();
  rows.reveal(at);
  if (scroll) byId("tensors").scrollIntoView({ block: "start" });
  rows.go(at);
  openDetails(i);
}

function showType(type) {
  byId("tensor-search").value = "";
  byId("tensor-type").value = String(type);
  arrange();
  byId("tensors").scrollIntoView({ block: "start" });
  byId("tensor-type").focus({ preventScroll: true });
}

function startTensors() {
  byId("tensor-search").addEventListener("input", settled(() => arrange()));
  byId("tensor-type").addEventListener("change", () => arrange());
  for (const head of table.tHead.querySelectorAll("th")) {
    head.querySelector("button").addEventListener("click", () => {
      const column = head.dataset.column;
      sorted = { column, down: sorted.column === column ? !sorted.down : column === "error" };
      arrange();
    });
  }
  table.tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-tensor]");
    if (row) showTensor(Number(row.dataset.tensor), { scroll: false });
  });
  table.tBodies[0].addEventListener("keydown", (event) => rows.key(event));
  arrange();
}
