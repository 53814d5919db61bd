// The figures of a run, by uPlot. Live runs add points when the page hears that the run has changed.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const HUES = ["--accent", "--goal", "--b6"];

  function curve(item, number) {
    const { key, role } = item.dataset;
    const colour = squelch.colour(role === "line" ? HUES[number % HUES.length] : role === "reference" ? "--dim" : HUES[0]);
    const plain = { label: item.textContent, stroke: colour, width: 1.5, spanGaps: true, points: { show: false }, value: (_, value) => (value == null ? "–" : value.toPrecision(3)) };
    if (role === "reference") return { ...plain, width: 1, dash: [4, 4] };
    if (role === "low" || role === "high") return { ...plain, width: 0, class: "band" };
    return { ...plain, key };
  }

  function bands(items) {
    const roles = items.map((item) => item.dataset.role);
    const [low, high] = [roles.indexOf("low") + 1, roles.indexOf("high") + 1];
    return low && high ? [{ series: [high, low], fill: `color-mix(in srgb, ${squelch.colour(HUES[0])} 16%, transparent)` }] : [];
  }

  function options(figure, items, width) {
    let number = 0;
    const axis = { stroke: squelch.colour("--dim"), grid: { stroke: squelch.colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${squelch.colour("--sans")}`, size: 26 };
    return {
      width, height: 190, legend: { live: true }, cursor: { sync: { key: "steps" }, points: { size: 6 } },
      scales: { x: { time: false }, y: figure.dataset.share === "1" ? { range: [0, 1.02] } : {} },
      axes: [axis, { ...axis, size: 46 }],
      series: [{ label: "step" }, ...items.map((item) => curve(item, item.dataset.role === "line" ? number++ : 0))],
      bands: bands(items),
    };
  }

  squelch.on("[data-charts]", async (frame) => {
    let drawn = [];
    async function load() {
      const answer = await fetch(frame.dataset.charts);
      if (answer.ok) draw(await answer.json());
    }
    function draw(numbers) {
      frame.numbers = numbers;
      drawn.forEach((plot) => plot.destroy());
      drawn = [];
      for (const figure of frame.querySelectorAll(".chart")) {
        const items = [...figure.querySelectorAll("li")].filter((item) => (numbers[item.dataset.key] ?? []).some((value) => value !== null));
        const place = figure.querySelector(".plot");
        place.replaceChildren();
        if (!items.length) {
          const none = document.createElement("p");
          none.className = "none";
          none.textContent = "not measured yet";
          place.append(none);
          continue;
        }
        const columns = [numbers.step, ...items.map((item) => numbers[item.dataset.key])];
        drawn.push(new uPlot(options(figure, items, figure.clientWidth - 24), columns, place));
      }
      frame.dataset.drawn = "1";
    }
    document.body.addEventListener("run-changed", () => frame.isConnected && load());
    document.addEventListener("squelch:theme", () => frame.isConnected && draw(frame.numbers));
    addEventListener("resize", () => frame.isConnected && drawn.forEach((plot) => plot.setSize({ width: plot.root.closest(".chart").clientWidth - 24, height: 190 })));
    load();
  });
});
