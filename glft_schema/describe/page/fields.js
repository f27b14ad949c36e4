// The fields of a file as a tree.

// The fields of a file from the page's data: rows in depth-first order, each after its parent.
class Fields {
  constructor(file) {
    Object.assign(this, file.fields);
    this.count = this.start.length;
    this.below = Array.from({ length: this.count }, () => 0); // number of descendants
    this.level = new Array(this.count);
    for (let i = 0; i < this.count; i++) this.level[i] = this.parent[i] < 0 ? 1 : this.level[this.parent[i]] + 1;
    for (let i = this.count - 1; i >= 0; i--) if (this.parent[i] >= 0) this.below[this.parent[i]] += this.below[i] + 1;
    // Rows with bytes and no children, by their first byte; the first of several at the same bytes.
    this.leaves = [];
    for (let i = 0; i < this.count; i++) if (!this.below[i] && this.size[i]) this.leaves.push(i);
    this.leaves.sort((one, other) => this.start[one] - this.start[other] || one - other);
  }

  // The innermost field of a byte, or -1.
  at(byte) {
    let [low, high] = [0, this.leaves.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[this.leaves[middle]] <= byte) low = middle + 1;
      else high = middle;
    }
    for (let k = low - 1; k >= 0; k--) {
      const leaf = this.leaves[k];
      if (byte < this.start[leaf] + this.size[leaf]) {
        while (k > 0 && this.start[this.leaves[k - 1]] === this.start[leaf]) k--;
        return this.leaves[k];
      }
      if (this.size[leaf]) return -1;
    }
    return -1;
  }

  children(node) {
    const found = [];
    for (let i = node + 1; i <= node + this.below[node]; i += this.below[i] + 1) found.push(i);
    return found;
  }

  parents(node) {
    const found = [];
    for (let at = this.parent[node]; at >= 0; at = this.parent[at]) found.unshift(at);
    return found;
  }

  // Texts repeat in each row of a table. They are stored once, and here as indices.
  text(column, node) {
    const value = this[column][node];
    return typeof value === "number" ? this.texts[value] : value;
  }
}

const trees = data.files.map((file) => new Fields(file));
let shownFile = 0;
let tree = trees[0];
let visible = []; // rows of the tree without closed ancestors
const opened = new Set();

function field(file, node) {
  const of = trees[file];
  return {
    name: of.text("name", node),
    path: [...of.parents(node), node].map((at) => of.text("name", at)).join(" → "),
    start: of.start[node],
    end: of.start[node] + of.size[node],
    type: of.text("type", node),
    doc: of.text("doc", node),
    value: of.text("value", node),
  };
}

function declared(i) {
  return tensors.rows[i] < 0 ? [] : trees[tensors.files[i]].children(tensors.rows[i]);
}

function payload(i) {
  const node = tensors.payloads[i];
  if (node < 0) return [];
  const below = trees[tensors.files[i]].children(node);
  return below.length ? below : [node];
}

function range(start, end) {
  if (start === end) return `none, at ${count(start)}`;
  return end - start === 1 ? count(start) : `${count(start)} to ${count(end - 1)}`;
}

const branches = new Rows({
  scroller: byId("tree"),
  body: byId("tree"),
  draw: (at) => {
    const node = visible[at];
    const open = opened.has(node);
    const name = quoted(tree.text("name", node), { class: "name" });
    const value = tree.text("value", node);
    const row = make(
      "div",
      {
        role: "treeitem",
        class: node === chosen ? "branch selected" : "branch",
        tabindex: at === branches.active ? 0 : -1,
        "aria-level": tree.level[node],
        "aria-expanded": tree.below[node] ? String(open) : null,
        "aria-selected": String(node === chosen),
        "data-node": node,
      },
      make("span", { class: "twist", "aria-hidden": "true" }, tree.below[node] ? (open ? "▾" : "▸") : ""),
      name,
      value && !tree.below[node] ? quoted(value, { class: "value" }) : make("span", { class: "value" }, tree.size[node] ? `${count(tree.size[node])} bytes` : ""),
    );
    row.style.setProperty("--level", tree.level[node]);
    return row;
  },
});

function flatten() {
  visible = [];
  for (let i = 0; i < tree.count; i += opened.has(i) ? 1 : tree.below[i] + 1) visible.push(i);
}

function toggle(node, open) {
  if (!tree.below[node]) return;
  if (open) opened.add(node);
  else opened.delete(node);
  const held = byId("tree").contains(document.activeElement);
  const top = branches.scroller.scrollTop;
  flatten();
  branches.reset(visible.length, visible.indexOf(node));
  branches.scroller.scrollTop = top;
  branches.draw();
  if (held) branches.go(visible.indexOf(node));
}

// Opens the ancestors of a field, and scrolls to it.
function revealBranch(node, focus) {
  for (const parent of tree.parents(node)) opened.add(parent);
  flatten();
  branches.reset(visible.length, visible.indexOf(node));
  branches.reveal(branches.active);
  if (focus) branches.go(branches.active);
}

function startTree() {
  const box = byId("tree");
  box.addEventListener("click", (event) => {
    const row = event.target.closest("[data-node]");
    if (!row) return;
    const node = Number(row.dataset.node);
    if (event.target.closest(".twist") && tree.below[node]) toggle(node, !opened.has(node));
    else if (tree.below[node] && node === chosen) toggle(node, !opened.has(node));
    else {
      if (tree.below[node]) toggle(node, true);
      choose(node);
    }
    branches.go(visible.indexOf(node));
  });
  box.addEventListener("keydown", (event) => {
    if (branches.key(event)) return;
    const node = visible[branches.active];
    if (node === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") choose(node);
    else if (event.key === "ArrowRight") {
      if (tree.below[node] && !opened.has(node)) toggle(node, true);
      else if (tree.below[node]) branches.go(branches.active + 1);
    } else if (event.key === "ArrowLeft") {
      if (opened.has(node)) toggle(node, false);
      else if (tree.parent[node] >= 0) branches.go(visible.indexOf(tree.parent[node]));
    } else return;
    event.preventDefault();
  });
}
