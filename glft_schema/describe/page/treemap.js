// A treemap of modules: nested rectangles with areas proportional to bytes, coloured by type.

const HEAD = 20; // px of a module's title
const [LEAST_WIDTH, LEAST_HEIGHT] = [84, 64]; // px: smaller modules are one cell
const map = byId("treemap");
let zoomed = [data.modules]; // from the root to the module shown

function children(node) {
  return Array.isArray(node[2]) ? node[2] : null;
}

// The type with most of a module's bytes, the number of its tensors, and whether all have that type.
function inside(node) {
  const bytes = new Map();
  let tensors = 0;
  const open = [node];
  while (open.length) {
    const [, size, content] = open.pop();
    if (Array.isArray(content)) open.push(...content);
    else if (typeof content === "number") {
      const type = data.tensors.types[content];
      bytes.set(type, (bytes.get(type) || 0) + size);
      tensors += 1;
    }
  }
  const most = [...bytes].sort((one, other) => other[1] - one[1])[0];
  return { tensors, type: most ? most[0] : null, pure: bytes.size === 1 };
}

// Squarified layout: rows of cells along the shorter side, each filled while its cells get closer to squares.
function squarify(nodes, area) {
  const sized = nodes.filter((node) => node[1] > 0).sort((one, other) => other[1] - one[1] || natural(one[0], other[0]));
  const total = sized.reduce((sum, node) => sum + node[1], 0);
  const scale = total ? (area.width * area.height) / total : 0;
  const placed = [];
  let { x, y, width, height } = area;
  let at = 0;
  while (at < sized.length && width > 0 && height > 0) {
    const side = Math.min(width, height);
    let [row, sum, worst] = [[], 0, Infinity];
    for (let i = at; i < sized.length; i++) {
      const [size, first] = [sized[i][1] * scale, sized[at][1] * scale];
      const all = sum + size;
      const ratio = Math.max((side * side * first) / (all * all), (all * all) / (side * side * size));
      if (ratio > worst) break;
      [sum, worst] = [all, ratio];
      row.push(sized[i]);
    }
    const depth = sum / side;
    let along = 0;
    for (const node of row) {
      const length = (node[1] * scale) / depth;
      const across = width >= height;
      placed.push([node, across ? { x, y: y + along, width: depth, height: length } : { x: x + along, y, width: length, height: depth }]);
      along += length;
    }
    if (width >= height) [x, width] = [x + depth, width - depth];
    else [y, height] = [y + depth, height - depth];
    at += row.length;
  }
  return placed;
}

function place(element, { x, y, width, height }) {
  Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
  return element;
}

function drawTreemap(focus = false) {
  const node = zoomed[zoomed.length - 1];
  const held = document.activeElement && map.contains(document.activeElement);
  const cells = document.createDocumentFragment();
  fill(cells, children(node), { x: 0, y: 0, width: map.clientWidth, height: map.clientHeight }, zoomed.slice(1));
  map.replaceChildren(cells);
  const first = map.querySelector("button");
  if (first) first.tabIndex = 0;
  if ((focus || held) && first) first.focus();
  drawTrail();
}

function fill(into, nodes, area, path) {
  for (const [node, box] of squarify(nodes, area)) {
    if (box.width < 1.5 || box.height < 1.5) continue; // too small to see; still in the table
    const name = [...path, node].map((of) => of[0]).join(".");
    const below = children(node);
    if (below && box.width >= LEAST_WIDTH && box.height >= LEAST_HEIGHT) {
      const about = `${name}, ${plural(inside(node).tensors, "tensor")}, ${count(node[1])} bytes, ${share(node[1], data.bytes)}: zoom in`;
      const title = make("button", { class: "module", type: "button", tabindex: -1, "aria-label": about, title: about }, quoted(node[0]));
      title.addEventListener("click", () => zoom(node, path));
      into.append(place(title, { ...box, height: HEAD }));
      fill(into, below, { x: box.x + 2, y: box.y + HEAD, width: box.width - 4, height: box.height - HEAD - 2 }, [...path, node]);
    } else into.append(place(cell(node, name, path, box), box));
  }
}

function cell(node, name, path, box) {
  const { tensors, type, pure } = inside(node);
  const kind = typeof node[2] === "string" ? "no tensor" : pure ? data.types[type].name : `mostly ${data.types[type].name}`;
  const what = children(node) ? `${plural(tensors, "tensor")}, ${kind}` : kind;
  const about = `${name}, ${what}, ${count(node[1])} bytes, ${share(node[1], data.bytes)}`;
  const button = make("button", { class: `cell ${type === null ? "other" : `type type-${type % 8} dash-${type % 4}`}`, type: "button" });
  button.tabIndex = -1;
  button.title = about;
  button.setAttribute("aria-label", about);
  if (box.width > 44 && box.height > 18) button.append(quoted(node[0], { class: "label" }));
  if (box.width > 60 && box.height > 40) button.append(make("span", { class: "kind" }, children(node) ? plural(tensors, "tensor") : kind));
  button.addEventListener("click", () => {
    if (children(node)) zoom(node, path);
    else if (typeof node[2] === "number") showTensor(node[2]);
    else showRegion(node[2]);
  });
  return button;
}

// Zooms in on a module; `path` is its ancestors.
function zoom(node, path) {
  zoomed = [data.modules, ...path, node];
  drawTreemap(true);
}

function drawTrail() {
  const trail = byId("trail");
  trail.replaceChildren(
    ...zoomed.map((node, i) => {
      const label = i ? quoted(node[0]) : "Whole file";
      if (i === zoomed.length - 1) return make("li", { "aria-current": "location" }, label);
      const act = () => {
        zoomed = zoomed.slice(0, i + 1);
        drawTreemap(true);
      };
      return make("li", {}, make("button", { type: "button", class: "link", onclick: act }, label));
    }),
  );
}

// The nearest cell to `from` in the direction of an arrow key, by sideways distance, then by distance.
function neighbour(from, key) {
  const box = from.getBoundingClientRect();
  const centre = (of) => [of.left + of.width / 2, of.top + of.height / 2];
  const [x, y] = centre(box);
  let [best, least] = [null, Infinity];
  for (const other of map.querySelectorAll("button")) {
    if (other === from) continue;
    const its = other.getBoundingClientRect();
    const [itsX, itsY] = centre(its);
    const [dx, dy] = [itsX - x, itsY - y];
    const along = { ArrowRight: dx, ArrowLeft: -dx, ArrowDown: dy, ArrowUp: -dy }[key];
    if (along <= 1) continue;
    const level = key === "ArrowRight" || key === "ArrowLeft";
    const overlaps = level ? its.bottom > box.top + 1 && its.top < box.bottom - 1 : its.right > box.left + 1 && its.left < box.right - 1;
    const distance = along + Math.abs(level ? dy : dx) * (overlaps ? 0.3 : 3);
    if (distance < least) [best, least] = [other, distance];
  }
  return best;
}

map.addEventListener("keydown", (event) => {
  const from = event.target.closest("button");
  if (event.key === "Escape" && zoomed.length > 1) {
    zoomed = zoomed.slice(0, -1);
    drawTreemap(true);
  } else if (event.key.startsWith("Arrow") && from) {
    event.preventDefault();
    const next = neighbour(from, event.key);
    if (next) {
      from.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  }
});
map.addEventListener("focusin", (event) => {
  for (const button of map.querySelectorAll('button[tabindex="0"]')) button.tabIndex = -1;
  event.target.tabIndex = 0;
});

function startTreemap() {
  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth === width) return;
    width = map.clientWidth;
    drawTreemap();
  }).observe(map);
  for (const button of document.querySelectorAll("[data-type]")) {
    button.addEventListener("click", () => showType(Number(button.dataset.type)));
  }
}
