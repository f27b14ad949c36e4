// The searchable table of metadata.

const LONG = 240; // characters: longer values are folded

function startMetadata() {
  const body = byId("metadata-table").tBodies[0];
  const entries = data.metadata.map(([key, type, value]) => {
    const start = value.length > LONG ? `${value.slice(0, LONG).replace(/\s+/g, " ")} …` : value;
    const text = quoted(start, { class: "text" });
    const long = value.length > LONG;
    const full = long ? make("details", {}, make("summary", {}, text), make("pre", { tabindex: 0 }, quoted(value))) : text;
    const row = make("tr", {}, make("th", { scope: "row" }, quoted(key)), make("td", { class: "kind" }, type), make("td", { class: "value" }, full));
    body.append(row);
    return [row, `${key} ${type} ${value}`.toLowerCase()];
  });
  const search = () => {
    const found = matcher(byId("metadata-search").value);
    let shown = 0;
    for (const [row, text] of entries) {
      row.hidden = !found(text);
      shown += row.hidden ? 0 : 1;
    }
    byId("metadata-count").textContent = `${count(shown)} of ${plural(data.entries, "entry", "entries")}`;
    byId("no-metadata").hidden = shown > 0;
  };
  byId("metadata-search").addEventListener("input", settled(search));
  search();
}
