"use strict";
// Passes netsilo's chart options to the chart library; reacts to theme, window size, folds and
// printing.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("charts").textContent);
  const drawn = new Map();
  for (const [name, theme] of Object.entries(data.themes)) echarts.registerTheme(name, theme);

  const night = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const theme = () => printing ? "light" : root.dataset.theme || (night.matches ? "dark" : "light");

  // an interval: a line with end marks
  const whisker = (params, api) => {
    const [x1, y] = api.coord([api.value(0), api.value(2)]);
    const [x2] = api.coord([api.value(1), api.value(2)]);
    const style = { stroke: data.themes[theme()].whisker, lineWidth: 1.5, fill: null };
    const line = (shape) => ({ type: "line", shape, style });
    return { type: "group", children: [
      line({ x1, y1: y, x2, y2: y }),
      line({ x1, y1: y - 5, x2: x1, y2: y + 5 }),
      line({ x1: x2, y1: y - 5, x2, y2: y + 5 }),
    ] };
  };

  const draw = (place) => {
    if (drawn.has(place) || !place.checkVisibility()) return;
    const option = structuredClone(data.options[place.dataset.chart]);
    const base = option.baseOption ?? option;
    for (const series of base.series) if (series.renderItem === "whisker") series.renderItem = whisker;
    base.aria = { ...base.aria, label: { description: place.getAttribute("aria-label") } };
    const chart = echarts.init(place, theme(), { renderer: "svg" });
    chart.setOption(option);
    drawn.set(place, chart);
  };
  const places = [...document.querySelectorAll("[data-chart]")];
  const drawAll = () => places.forEach(draw);
  const redraw = () => {
    drawn.forEach((chart) => chart.dispose());
    drawn.clear();
    drawAll();
  };

  root.classList.add("drawn");
  drawAll();
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", drawAll));
  addEventListener("resize", () => drawn.forEach((chart) => chart.resize()));
  night.addEventListener("change", redraw);

  const button = document.getElementById("theme");
  const name = () => { button.textContent = theme() === "dark" ? "Light" : "Dark"; };
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    name();
    redraw();
  });

  // print: light theme, one column, all folds open except the charts' tables, whose figures are also
  // in the raw figures at the end
  let folded = [];
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("printing");
    folded = [...document.querySelectorAll("details:not([open])")].filter((fold) => !fold.closest("figure"));
    folded.forEach((fold) => { fold.open = true; });
    redraw();
  });
  addEventListener("afterprint", () => {
    printing = false;
    root.classList.remove("printing");
    folded.forEach((fold) => { fold.open = false; });
    redraw();
  });
})();
