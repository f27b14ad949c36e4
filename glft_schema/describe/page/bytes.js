// The bytes of a file, linked with its fields: selecting one shows the other.

let width = 0; // bytes of a line
let chosen = -1; // the selected field
let here = -1; // the byte that arrow keys move from
let lines = []; // [start] of a line, or [start, end] of bytes that are not on this page
let segments = []; // [start, Uint8Array]

function decoded(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function byteAt(position) {
  let [low, high] = [0, segments.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (segments[middle][0] <= position) low = middle + 1;
    else high = middle;
  }
  if (!low) return -1;
  const [start, bytes] = segments[low - 1];
  return position < start + bytes.length ? bytes[position - start] : -1;
}

function layLines() {
  lines = [];
  let end = 0;
  for (const [start, bytes] of segments) {
    if (start > end) lines.push([end, start]);
    for (let at = start - (start % width); at < start + bytes.length; at += width) lines.push([at]);
    end = start + bytes.length;
  }
  if (end < data.files[shownFile].size) lines.push([end, data.files[shownFile].size]);
}

// The line of a byte, or the folded line that replaces it.
function lineOf(position) {
  let [low, high] = [0, lines.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle][0] <= position) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

const dump = new Rows({
  scroller: byId("dump"),
  body: byId("dump"),
  draw: (at) => {
    const [start, end] = lines[at];
    const digits = Math.max(8, hex(data.files[shownFile].size).length);
    if (end !== undefined) {
      const text = `${plural(end - start, "byte")} from ${count(start)} on: not on this page`;
      const folded = make("div", { role: "row", class: "line folded" }, make("span", { role: "gridcell", tabindex: -1, "data-byte": start }, text));
      return paint(folded, at);
    }
    const line = make("div", { role: "row", class: "line" }, make("span", { role: "rowheader", class: "offset" }, hex(start, digits)));
    const text = make("span", { class: "letters", "aria-hidden": "true" });
    for (let position = start; position < start + width; position++) {
      const byte = byteAt(position);
      if (byte < 0) {
        line.append(make("span", { role: "presentation", class: "byte none" }, "  "));
        text.append(make("span", {}, " "));
        continue;
      }
      line.append(make("span", { role: "gridcell", class: "byte", tabindex: -1, "data-byte": position }, hex(byte, 2)));
      text.append(make("span", { "data-letter": position }, byte > 32 && byte < 127 ? String.fromCharCode(byte) : "·"));
    }
    line.append(text);
    return paint(line, at);
  },
});

// Marks the bytes of the selected field, the first byte of each field, and the byte in the tab order.
function paint(line, at) {
  const [from, to] = chosen < 0 ? [0, 0] : [tree.start[chosen], tree.start[chosen] + tree.size[chosen]];
  for (const cell of line.querySelectorAll("[data-byte], [data-letter]")) {
    const position = Number(cell.dataset.byte ?? cell.dataset.letter);
    cell.classList.toggle("marked", position >= from && position < to);
    if (cell.dataset.byte === undefined) continue;
    const leaf = tree.at(position);
    cell.classList.toggle("first", leaf >= 0 && tree.start[leaf] === position);
    cell.classList.toggle("here", position === here);
    cell.tabIndex = position === here ? 0 : -1;
    cell.setAttribute("aria-selected", String(position >= from && position < to));
  }
  if (lines[at].length > 1) line.classList.toggle("marked", from < lines[at][1] && to > lines[at][0]);
  return line;
}

function repaint() {
  for (const [at, line] of dump.drawn) paint(line, at);
}

// Selects a field: describes it, marks its bytes, and scrolls to them unless one of them was clicked.
function choose(node, { scroll = true, byte = null } = {}) {
  const before = chosen;
  chosen = node;
  if (byte !== null) here = byte;
  else if (tree.size[node] || here < 0) here = tree.start[node];
  dump.active = lineOf(here);
  if (scroll) dump.reveal(dump.active, true);
  else dump.draw();
  repaint();
  for (const row of byId("tree").querySelectorAll("[data-node]")) {
    const its = Number(row.dataset.node);
    if (its !== before && its !== chosen) continue;
    row.classList.toggle("selected", its === chosen);
    row.setAttribute("aria-selected", String(its === chosen));
  }
  describeField();
}

function describeField() {
  const { name, path, start, end, type, doc, value } = field(shownFile, chosen);
  const folded = start < end && byteAt(start) < 0;
  const partly = !folded && start < end && byteAt(end - 1) < 0;
  byId("field").replaceChildren(
    make("h3", {}, quoted(name)),
    doc ? make("p", { class: "sentence" }, doc) : "",
    definitions([
      ["Path", quoted(path)],
      type && ["Type", type],
      value && ["Value", quoted(value, { class: "text" })],
      ["Bytes", `${range(start, end)}${end > start ? ` (0x${hex(start)}, ${plural(end - start, "byte")})` : ""}`],
    ]),
    folded || partly ? make("p", { class: "note" }, folded ? "These bytes are not on this page." : "Some of these bytes are not on this page.") : "",
  );
}

// Goes to a byte and selects its field.
function goToByte(position, { focus = true } = {}) {
  const node = tree.at(position);
  here = position;
  dump.active = lineOf(position);
  dump.reveal(dump.active);
  if (node >= 0) {
    choose(node, { scroll: false, byte: position });
    revealBranch(node, false);
  } else repaint();
  const cell = byId("dump").querySelector(`[data-byte="${position}"]`);
  if (focus && cell) cell.focus({ preventScroll: true });
}

// Shows a field that was selected elsewhere on the page.
function showField(file, node, { focus = false } = {}) {
  if (file !== shownFile) showFile(file);
  byId("bytes").scrollIntoView({ block: "start" });
  revealBranch(node, focus);
  choose(node);
}

function showByte(file, position) {
  if (file !== shownFile) showFile(file);
  byId("bytes").scrollIntoView({ block: "start" });
  goToByte(position);
  dump.reveal(dump.active, true);
}

function showRegion(name) {
  for (let node = 0; node < tree.count; node += tree.below[node] + 1) {
    if (tree.text("name", node) === name) {
      showField(shownFile, node, { focus: true });
      return;
    }
  }
  byId("bytes").scrollIntoView({ block: "start" });
}

function showFile(file) {
  shownFile = file;
  tree = trees[file];
  segments = data.files[file].segments.map(([start, text]) => [start, decoded(text)]);
  [chosen, here] = [-1, 0];
  opened.clear();
  if (byId("file")) byId("file").value = String(file);
  flatten();
  branches.reset(visible.length);
  layLines();
  dump.reset(lines.length);
  if (tree.count) {
    if (tree.below[0]) opened.add(0);
    flatten();
    branches.reset(visible.length);
    choose(0);
  }
}

// The next byte on this page in the direction of a key; skips folded bytes.
function stepped(key) {
  const line = dump.active;
  const column = here - lines[line][0];
  const onPage = (position) => position >= 0 && position < data.files[shownFile].size;
  if (key === "ArrowRight" || key === "ArrowLeft") {
    const by = key === "ArrowRight" ? 1 : -1;
    const next = lines[line].length > 1 ? (by > 0 ? lines[line][1] : lines[line][0] - 1) : here + by;
    if (!onPage(next)) return here;
    return lines[lineOf(next)].length > 1 ? lines[lineOf(next)][0] : next;
  }
  const page = Math.max(1, Math.floor(dump.scroller.clientHeight / (dump.height || 24)) - 2);
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -lines.length, End: lines.length }[key];
  const next = Math.max(0, Math.min(line + by, lines.length - 1));
  if (lines[next].length > 1) return lines[next][0];
  for (let at = lines[next][0] + Math.min(column, width - 1); at >= lines[next][0]; at--) if (byteAt(at) >= 0) return at;
  for (let at = lines[next][0]; at < lines[next][0] + width; at++) if (byteAt(at) >= 0) return at;
  return here;
}

function startBytes() {
  const box = byId("dump");
  const measure = () => {
    const fits = narrow.matches ? 8 : 16;
    if (fits === width) return;
    width = fits;
    box.setAttribute("aria-colcount", width + 1);
    if (!segments.length) return;
    layLines();
    dump.reset(lines.length, lineOf(Math.max(here, 0)));
    dump.reveal(dump.active, true);
    repaint();
  };
  measure();
  narrow.addEventListener("change", measure);
  box.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-byte], [data-letter]");
    if (cell) goToByte(Number(cell.dataset.byte ?? cell.dataset.letter));
  });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(Arrow|Page|Home|End)/.test(event.key)) {
      event.preventDefault();
      goToByte(stepped(event.key));
    } else if ((event.key === "Enter" || event.key === " ") && chosen >= 0) {
      event.preventDefault();
      revealBranch(chosen, true);
    }
  });
  if (byId("file")) byId("file").addEventListener("change", (event) => showFile(Number(event.target.value)));
  for (const button of document.querySelectorAll("[data-offset]")) {
    button.addEventListener("click", () => showByte(Number(button.dataset.file), Number(button.dataset.offset)));
  }
}
