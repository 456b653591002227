const specs = JSON.parse(document.getElementById("specs").textContent);
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;

function dark() {
  return chosen === null ? system.matches : chosen;
}

function config() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const axis = { labelColor: of("--soft"), titleColor: of("--soft"), gridColor: of("--line"), domainColor: of("--line"), tickColor: of("--line"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 };
  return {
    background: null, font: getComputedStyle(document.body).fontFamily, view: { stroke: null }, axis,
    axisY: { ...axis, labelColor: of("--ink"), grid: false, ticks: false, domain: false, labelPadding: 10 },
    legend: { labelColor: of("--ink"), titleColor: of("--soft"), symbolType: "square", labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, columnPadding: 16 },
  };
}

async function draw() {
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(dark()));
  document.body.dataset.charts = "drawing";
  for (const place of document.querySelectorAll("[data-chart]")) {
    await window.vegaEmbed(place, specs[place.dataset.chart], {
      actions: false, renderer: "svg", config: config(), tooltip: { theme: dark() ? "dark" : "light" },
    });
  }
  document.body.dataset.charts = "drawn";
}

button.addEventListener("click", () => { chosen = !dark(); draw(); });
system.addEventListener("change", draw);
draw();
