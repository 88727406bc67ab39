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

/** Offer a text as a file. */
function save(text, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(rows) {
  const cell = (value) => {
    const text = value === undefined || value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const plain = (value) => (typeof value === "string" ? value.replaceAll("&lt;", "<").replaceAll("&amp;", "&") : value);

/** The points of a plot, one in a row. */
function points(figure) {
  const rows = [["series", "x", "y", "value"]];
  for (const trace of figure.data) {
    if (trace.z) {
      const names = (axis, place) => (figure.layout[axis].ticktext ? figure.layout[axis].ticktext[place] : place);
      trace.customdata.forEach((row, y) => row.forEach((cell, x) => {
        rows.push(["", plain(names("xaxis", x)), plain(names("yaxis", y)), Array.isArray(cell) ? cell.at(-1) : cell]);
      }));
      continue;
    }
    trace.x.forEach((x, place) => {
      const more = trace.customdata ? trace.customdata[place] : "";
      rows.push([plain(trace.name), plain(x), plain(trace.y[place]), plain(Array.isArray(more) ? more.join(" ") : more)]);
    });
  }
  return rows;
}

/** A button at the title of a block that saves its numbers. */
function offer(block, rows) {
  const title = block.querySelector("figcaption");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "CSV";
  button.title = "Download these numbers";
  const name = title.textContent.replace(/[^\w.-]+/g, "_").replace(/^_|_$/g, "").toLowerCase();
  button.addEventListener("click", () => save(csv(rows()), `${name}.csv`, "text/csv"));
  title.append(button);
}

/** Say where a table goes on beyond its box. */
function cue(box) {
  const sign = box.nextElementSibling;
  const update = () => {
    const right = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
    const down = box.scrollHeight - box.clientHeight - box.scrollTop > 4;
    sign.textContent = [right ? "more to the right →" : "", down ? "more below ↓" : ""].filter(Boolean).join(", ");
    sign.classList.toggle("shown", right || down);
  };
  box.addEventListener("scroll", update);
  new ResizeObserver(update).observe(box);
  update();
}

function layout(figure) {
  const { font, axis } = colors();
  const narrow = document.documentElement.clientWidth < 600;
  return {
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal", itemsizing: "constant" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest",
    ...figure.layout,
    margin: { l: narrow ? 45 : 60, r: 10, t: 10, b: 45, ...figure.layout.margin },
    font,
    xaxis: { automargin: true, ...axis, ...figure.layout.xaxis },
    yaxis: { automargin: true, ...axis, ...figure.layout.yaxis, title: { standoff: 10, ...figure.layout.yaxis?.title } },
  };
}

function draw() {
  figures.forEach((figure, number) => {
    for (const trace of figure.data) {
      if (trace.texttemplate || trace.text) trace.textfont = { color: colors().font.color, size: 11 };
    }
    Plotly.react(`p${number}`, figure.data, layout(figure), { responsive: true, displaylogo: false, displayModeBar: false });
  });
}

if (figures.length) {
  draw();
  dark.addEventListener("change", draw);
  printing.addEventListener("change", draw);
}

document.querySelectorAll(".plot").forEach((plot, number) => offer(plot.parentElement, () => points(figures[number])));
document.querySelectorAll("figure.table").forEach((block) => {
  const cells = (row) => [...row.children].map((cell) => cell.textContent);
  offer(block, () => [...block.querySelectorAll("tr")].map(cells));
  cue(block.querySelector(".scroll"));
});
document.getElementById("download").addEventListener("click", () => {
  save(document.getElementById("numbers").textContent, "report.json", "application/json");
});
