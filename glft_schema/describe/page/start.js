// Starts all parts of the page.

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const is = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : dark.matches);
  const label = () => button.setAttribute("aria-pressed", String(is()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = is() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
}

document.documentElement.classList.add("scripted");
startTheme();
startTree();
startBytes();
showFile(0);
startTreemap();
startTensors();
startDetails();
startMetadata();
