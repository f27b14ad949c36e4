// The details of one tensor, next to the table, or over it on narrow screens.

const details = byId("details");
const BAR = 10; // of a histogram, in its own units
const TALL = 120;

function openDetails(i) {
  const type = data.types[tensors.types[i]];
  byId("details-name").replaceChildren(breakable(tensors.names[i]));
  const file = data.files[tensors.files[i]];
  const shared = tensors.shared[i];
  byId("details-content").replaceChildren(
    definitions([
      ["Type", type.code === type.name ? type.name : `${type.name}, code ${type.code}`],
      ["Dims as stored", dims(i)],
      ["Parameters", count(tensors.numbers[i])],
      ["Bytes", `${count(tensors.bytes[i])} (${share(tensors.bytes[i], data.bytes)} of the whole)`],
      ["Bits per weight", measured(Number(bits(i).toPrecision(6)))],
      ["At byte", `${count(tensors.at[i])}, 0x${hex(tensors.at[i])}`],
      data.files.length > 1 && ["File", quoted(file.name)],
      shared !== undefined && ["Same bytes as", tensorLink(shared)],
    ]),
    ...fieldsOf(i),
    ...numbersOf(i),
    ...errorsOf(i),
  );
  if (narrow.matches) {
    if (!details.open) details.showModal();
  } else details.setAttribute("open", "");
  byId("tensor-layout").classList.add("with-details");
  details.scrollTop = 0;
}

// A name with line breaks allowed after dots and underscores.
function breakable(name) {
  const text = quoted("");
  for (const part of name.split(/(?<=[._/])/)) text.append(part, make("wbr"));
  return text;
}

function closeDetails() {
  if (!details.open) return;
  const held = details.contains(document.activeElement);
  details.close();
  if (held) rows.go(rows.active);
}

function tensorLink(i) {
  return make("button", { type: "button", class: "link", onclick: () => showTensor(i, { scroll: false }) }, quoted(tensors.names[i]));
}

// The fields of the row that declares a tensor, and of its payload, with their bytes.
function fieldsOf(i) {
  const file = tensors.files[i];
  const jump = (node) => () => {
    if (narrow.matches) details.close();
    showField(file, node, { focus: true });
  };
  const parts = [];
  for (const [title, nodes] of [["Declared by", declared(i)], ["Payload", payload(i)]]) {
    const list = make("ul", { class: "fields" });
    for (const node of nodes) {
      const { name, start, end, value } = field(file, node);
      if (name === "rest") continue; // punctuation
      const about = make("button", { type: "button", class: "field", onclick: jump(node) });
      about.append(quoted(name, { class: "name" }), value ? quoted(value, { class: "value" }) : "");
      about.append(make("span", { class: "range" }, `bytes ${range(start, end)}`));
      list.append(make("li", {}, about));
    }
    if (nodes.length) parts.push(make("h4", {}, title), list);
  }
  if (!parts.length) parts.push(make("p", { class: "note" }, "Its fields are omitted from this page because the file has too many tensors."));
  return parts;
}

function numbersOf(i) {
  const found = data.numbers[i];
  const title = make("h4", {}, "Values");
  if (found.problem) return [title, make("p", { class: "note" }, `No values: ${found.problem}.`)];
  if (!found.count) return [title, make("p", { class: "note" }, "The tensor is empty.")];
  const all = found.count === tensors.numbers[i];
  const note = all ? `All ${count(found.count)} values, dequantized.` : `A sample of ${count(found.count)} of its ${count(tensors.numbers[i])} values, dequantized.`;
  return [title, make("p", { class: "note" }, note), ...distribution(found, "values"), ...(found.heat ? heatMap(found.heat) : [])];
}

// A grid of the mean magnitude of values, spread over the matrix.
function heatMap({ step, count: rows, columns: width, least, most, cells }) {
  const columns = cells.length / rows;
  const edge = (k) => Math.floor((width * k) / columns);
  const picture = make("svg:svg", { viewBox: `0 0 ${columns} ${rows}`, class: "heat", role: "img", preserveAspectRatio: "none" });
  picture.setAttribute("aria-label", `Heat map of ${rows} rows: mean magnitudes from ${measured(least)} to ${measured(most)}`);
  [...cells].forEach((cell, k) => {
    const [row, column] = [Math.floor(k / columns), k % columns];
    const level = parseInt(cell, 36) / 35; // NaN if not finite
    const box = make("svg:rect", { x: column, y: row, width: 1, height: 1, "fill-opacity": level || 0 });
    const value = Number.isNaN(level) ? "not finite" : measured(Number((least + level * (most - least)).toPrecision(3)));
    box.append(make("svg:title", {}, `row ${count(row * step)}, columns ${range(edge(column), edge(column + 1))}: ${value}`));
    picture.append(box);
  });
  const note = `Mean magnitude in ${rows} rows, spread over the matrix, by column:`;
  const ends = make("div", { class: "ends" }, make("span", {}, `${measured(least)}, light`), make("span", {}, `${measured(most)}, full colour`));
  return [make("p", { class: "note" }, note), make("figure", {}, picture, ends)];
}

// Statistics and the histogram of numbers.
function distribution(found, what) {
  const parts = [
    definitions([
      "min" in found && ["Min", measured(found.min)],
      "max" in found && ["Max", measured(found.max)],
      "mean" in found && ["Mean", measured(found.mean)],
      "std" in found && ["Std", measured(found.std)],
      ["NaN", count(found.nan || 0)],
      ["Infinite", count(found.inf || 0)],
    ]),
  ];
  if (found.histogram) parts.push(histogram(found, what));
  return parts;
}

function histogram({ histogram: counts, min, max }, what) {
  const most = Math.max(...counts);
  const width = counts.length * BAR;
  const edge = (k) => measured(Number((min + ((max - min) * k) / counts.length).toPrecision(5)));
  const about = `Histogram of ${what} from ${measured(min)} to ${measured(max)}; the fullest of ${counts.length} parts has ${count(most)}`;
  const picture = make("svg:svg", { viewBox: `0 0 ${width} ${TALL}`, class: "histogram", role: "img", "aria-label": about, preserveAspectRatio: "none" });
  const scale = make("input", { type: "checkbox" });
  const draw = () => {
    const height = (number) => (scale.checked ? Math.log1p(number) / Math.log1p(most) : number / most) * TALL;
    const bars = counts.map((number, k) => {
      const tall = number ? Math.max(height(number), 1) : 0;
      const bar = make("svg:rect", { x: k * BAR + 0.5, y: TALL - tall, width: BAR - 1, height: tall });
      bar.append(make("svg:title", {}, `${edge(k)} to ${edge(k + 1)}: ${count(number)}`));
      return bar;
    });
    picture.replaceChildren(...bars);
  };
  scale.addEventListener("change", draw);
  draw();
  const ends = counts.length > 1 ? [edge(0), edge(counts.length / 2), edge(counts.length)] : [edge(0)];
  const body = make("tbody");
  counts.forEach((number, k) => body.append(make("tr", {}, make("td", {}, edge(k)), make("td", {}, edge(k + 1)), make("td", {}, count(number)))));
  const head = make("thead", {}, make("tr", {}, ...["from", "to", "count"].map((name) => make("th", { scope: "col" }, name))));
  return make(
    "figure",
    {},
    picture,
    make("div", { class: "ends", "aria-hidden": "true" }, ...ends.map((end) => make("span", {}, end))),
    make("label", { class: "scale" }, scale, " Logarithmic counts"),
    make("details", { class: "counts" }, make("summary", {}, "Counts"), make("table", { class: "plain" }, head, body)),
  );
}

function errorsOf(i) {
  if (!data.errors) return [];
  const found = data.errors[i];
  const title = make("h4", {}, "Error against the source");
  if (found.problem) return [title, make("p", { class: "note" }, `Not compared: ${found.problem}.`)];
  const parts = [
    title,
    make("p", { class: "note" }, `Stored − source, over all ${count(found.count)} values.`),
    definitions([
      ["RMS error", measured(found.rms)],
      ["Max error", measured(found.max)],
      "relative" in found && ["RMS error / RMS", measured(found.relative)],
      "cosine" in found && ["Cosine", measured(found.cosine)],
      "unlike" in found && ["Finite in one only", count(found.unlike)],
    ]),
  ];
  if (found.sample && found.sample.histogram) parts.push(make("p", { class: "note" }, `Errors of the sample of ${count(found.sample.count)}:`), histogram(found.sample, "errors"));
  return parts;
}

function startDetails() {
  byId("details-close").addEventListener("click", () => closeDetails());
  details.addEventListener("close", () => byId("tensor-layout").classList.remove("with-details"));
  byId("tensor-layout").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && details.open && !event.target.matches("input") && !narrow.matches) closeDetails();
  });
  narrow.addEventListener("change", () => closeDetails());
}
