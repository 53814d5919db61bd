// The figures of a run, by uPlot. Live runs add points when the page hears that the run has changed.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const HUES = ["--accent", "--goal", "--b6"];
  const LONGEST = 22;

  const written = (value) => (value === null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))).replace("-", "−"));

  /** The newest value up to a place; of all, while the pointer is elsewhere. */
  function known(column, place) {
    for (let at = place ?? column.length - 1; at >= 0; at--) if (column[at] !== null) return column[at];
    return null;
  }
  const value = (plot, _, series, place) => written(known(plot.data[series], place));

  /** The ends of an axis. A constant is drawn half way up from 0, and not at the scale of its rounding error. */
  function range(_, low, high) {
    if (low === null) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low > 1e-6 * size) return uPlot.rangeNum(low, high, 0.1, true);
    return size === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  }

  /** The series of a chart and their columns: of each curve its raw values if it is smoothed, its values, and those of the second run. */
  function curves(items, [run, other]) {
    const found = [];
    let number = 0;
    for (const { dataset: { key, role }, textContent: label } of items) {
      const colour = squelch.colour(role === "line" ? HUES[number++ % HUES.length] : role === "reference" ? "--dim" : HUES[0]);
      const plain = { label, value, stroke: colour, width: 1.6, spanGaps: true, points: { show: false } };
      const quiet = { ...plain, class: "band" };
      const has = (columns) => columns?.[key]?.some((one) => one !== null);
      if (has(run.raw)) found.push([{ ...quiet, width: 1, alpha: 0.3 }, run.raw[key]]);
      if (role === "reference") found.push([{ ...plain, width: 1, dash: [4, 4] }, run.values[key]]);
      else if (role !== "line") found.push([{ ...quiet, width: 0, role }, run.values[key]]);
      else if (has(run.values)) found.push([plain, run.values[key]]);
      if (role === "line" && has(other?.values)) {
        const name = other.name.length > LONGEST ? `${other.name.slice(0, LONGEST - 1)}…` : other.name;
        found.push([{ ...plain, label: name, width: 1.3, dash: [7, 3], alpha: 0.8 }, other.values[key]]);
      }
    }
    return found;
  }

  function options(figure, series, width) {
    const axis = { stroke: squelch.colour("--dim"), grid: { stroke: squelch.colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${squelch.colour("--sans")}`, size: 26 };
    const [low, high] = ["low", "high"].map((role) => series.findIndex((one) => one.role === role) + 1);
    return {
      width, height: 190, legend: { live: true, markers: { dash: (plot, number) => (plot.series[number].dash ? "dashed" : "solid") } }, cursor: { sync: { key: "steps" }, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: figure.dataset.share === "1" ? [0, 1.02] : range } },
      axes: [axis, { ...axis, size: 50, values: (_, ticks) => ticks.map(written) }],
      series: [{ label: "step", value }, ...series],
      bands: low && high ? [{ series: [high, low], fill: `color-mix(in srgb, ${squelch.colour(HUES[0])} 16%, transparent)` }] : [],
    };
  }

  squelch.on("[data-charts]", async (frame) => {
    frame.plots = [];
    async function load() {
      const answer = await fetch(frame.dataset.charts);
      const numbers = answer.ok && (await answer.json());
      if (numbers && frame.isConnected) draw(numbers);  // the reader may have left the page meanwhile
    }
    function draw(numbers) {
      frame.numbers = numbers;
      frame.plots.forEach((plot) => plot.destroy());
      frame.plots = [];
      const empty = [];
      for (const figure of frame.querySelectorAll(".chart")) {
        const measured = (item) => numbers.runs.some((run) => run.values[item.dataset.key].some((one) => one !== null));
        const found = curves([...figure.querySelectorAll("li")].filter(measured), numbers.runs);
        figure.hidden = !found.length;
        if (figure.hidden) { empty.push(figure.querySelector("b").textContent); continue; }
        const place = figure.querySelector(".plot");
        place.replaceChildren();
        frame.plots.push(new uPlot(options(figure, found.map(([one]) => one), place.clientWidth), [numbers.step, ...found.map(([, column]) => column)], place));
      }
      const note = document.getElementById("unmeasured");
      note.hidden = !empty.length;
      note.textContent = `Not measured yet: ${empty.join(", ")}.`;
      frame.dataset.drawn = "1";
    }
    document.body.addEventListener("run-changed", () => frame.isConnected && load());
    document.addEventListener("squelch:theme", () => frame.isConnected && draw(frame.numbers));
    addEventListener("resize", () => frame.isConnected && frame.plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: 190 })));
    load();
  });
});
