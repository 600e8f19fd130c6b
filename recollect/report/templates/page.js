"use strict";
// Draws the figures that stand as JSON in the page: at once where they show, and inside <details> when first opened.
(() => {
  const drawn = new Set();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The page's own colours, asked again each time since they follow the system's light or dark mode.
  const themed = (layout) => {
    const axis = (name) => ({
      [`${name}.gridcolor`]: colour("--line"),
      [`${name}.linecolor`]: colour("--line"),
      [`${name}.tickfont.color`]: colour("--muted"),
      [`${name}.title.font.color`]: colour("--muted"),
      [`${name}.title.font.size`]: 13,
    });
    const axes = Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name));
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      "font.color": colour("--text"),
      "font.family": getComputedStyle(document.body).fontFamily,
      "font.size": 13,
      "modebar.bgcolor": "rgba(0,0,0,0)",
      "modebar.color": colour("--muted"),
      "modebar.activecolor": colour("--accent"),
      ...Object.assign({}, ...axes.map(axis)),
    };
  };

  const draw = (chart) => {
    if (drawn.has(chart)) return;
    drawn.add(chart);
    const figure = JSON.parse(chart.querySelector("script").textContent);
    const config = {
      responsive: true,
      displaylogo: false,
      displayModeBar: "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d"],
      // plotly's default is a button that sends the figure to its makers' server
      showSendToCloud: false,
      plotlyServerURL: "",
    };
    const plot = chart.querySelector(".plot");
    Plotly.newPlot(plot, figure.data, figure.layout, config).then(() => Plotly.relayout(plot, themed(figure.layout)));
  };

  const drawVisible = (root) => {
    for (const chart of root.querySelectorAll(".chart")) {
      if (!chart.closest("details:not([open])")) draw(chart);
    }
  };

  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => details.open && drawVisible(details));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of [...drawn].map((chart) => chart.querySelector(".plot"))) Plotly.relayout(plot, themed(plot.layout));
  });
  drawVisible(document);
})();
