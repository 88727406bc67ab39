"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const printing = window.matchMedia("print");

/** What plots take over from the page's style, so that they fit light, dark and paper. */
function colors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: of("--line"), zerolinecolor: of("--line"), linecolor: of("--line") };
  return { font: { color: of("--text"), size: 12, family: "system-ui, sans-serif" }, axis };
}

function layout(figure) {
  const { font, axis } = colors();
  const narrow = document.documentElement.clientWidth < 600;
  return {
    margin: { l: narrow ? 45 : 60, r: 10, t: 10, b: 45 },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest",
    ...figure.layout,
    font,
    xaxis: { automargin: true, ...axis, ...figure.layout.xaxis },
    yaxis: { automargin: true, ...axis, ...figure.layout.yaxis },
  };
}

function draw() {
  figures.forEach((figure, number) => {
    Plotly.react(`p${number}`, figure.data, layout(figure), { responsive: true, displaylogo: false, displayModeBar: false });
  });
}

if (figures.length) {
  draw();
  dark.addEventListener("change", draw);
  printing.addEventListener("change", draw);
}
