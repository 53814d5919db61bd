// The score matrix on a canvas. A click or the arrow keys choose a cell; the address bar then names it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const channels = (name) => squelch.colour(name).split(" ").map(Number);

  /** Colour of a value: `posterior` from the page's ground to its accent; `gap` from red over the ground to blue. */
  function painter(shows) {
    const [ground, full] = [channels("--heat0"), channels("--heat1")];
    const mix = (to, share) => ground.map((from, at) => from + (to[at] - from) * share);
    if (shows === "posterior") return (value) => mix(full, Math.sqrt(Math.max(0, Math.min(1, value))));
    return (value) => (value < 0 ? mix([179, 54, 43], Math.min(1, -value / 2)) : mix([38, 92, 170], Math.min(1, value / 2)));
  }

  squelch.on("canvas[data-heat]", async (canvas) => {
    const { heat, cell, page, show } = canvas.dataset;
    const [rows, columns] = [Number(canvas.dataset.rows), Number(canvas.dataset.columns)];
    const source = canvas.dataset.source.split(",").map(Number);
    const answer = await fetch(heat);
    if (!answer.ok) return;
    const values = new Float32Array(await answer.arrayBuffer());
    let at = canvas.dataset.rowAt === undefined ? null : [Number(canvas.dataset.rowAt), Number(canvas.dataset.columnAt)];
    const across = (column) => Math.round((column * canvas.width) / columns);
    const down = (row) => Math.round((row * canvas.height) / rows);

    function draw() {
      const ratio = devicePixelRatio || 1;
      const height = Math.round(rows * Math.max(2, Math.min(24, 620 / rows)));
      canvas.style.height = `${height}px`;
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = height * ratio;
      const context = canvas.getContext("2d");
      const paint = painter(show);
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const value = values[row * columns + column];
          context.fillStyle = Number.isNaN(value) ? squelch.colour("--zero") : `rgb(${paint(value).map(Math.round).join(" ")})`;
          context.fillRect(across(column), down(row), across(column + 1) - across(column), down(row + 1) - down(row));
        }
      }
      context.lineWidth = ratio;
      context.strokeStyle = squelch.colour("--dim");
      for (let row = 0, from = 0; row < rows; row++) {
        if (source[row] === source[row + 1]) continue;
        const [left, right] = [across(source[row]), across(source[row] + 1)];
        context.strokeRect(left + ratio / 2, down(from) + ratio / 2, right - left - ratio, down(row + 1) - down(from) - ratio);
        from = row + 1;
      }
      if (at) {
        context.strokeStyle = squelch.colour("--target");
        context.lineWidth = 2 * ratio;
        context.strokeRect(across(at[1]) + ratio, down(at[0]) + ratio, Math.max(3, across(1) - 2 * ratio), Math.max(3, down(1) - 2 * ratio));
      }
    }

    function open(row, column) {
      at = [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
      draw();
      const where = `row=${at[0]}&column=${at[1]}`;
      history.replaceState(history.state, "", `${page}&${where}`);
      htmx.ajax("GET", `${cell}&${where}`, { target: "#cell", swap: "innerHTML", select: "unset" });
    }

    function under(event) {
      const box = canvas.getBoundingClientRect();
      return [((event.clientY - box.top) / box.height) * rows, ((event.clientX - box.left) / box.width) * columns].map(Math.floor);
    }

    canvas.addEventListener("click", (event) => open(...under(event)));
    canvas.addEventListener("mousemove", (event) => {
      const [row, column] = under(event);
      if (row < 0 || column < 0 || row >= rows || column >= columns) return squelch.tip("");
      const value = values[row * columns + column];
      const own = source[row] === column ? "  own prompt" : "";
      squelch.tip(`reasoning ${row}, prompt ${column}${own}\n${Number.isNaN(value) ? "not scored" : value.toFixed(3)}`, event);
    });
    canvas.addEventListener("mouseleave", () => squelch.tip(""));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const [row, column] = at ?? [-step[0], -step[1]];
      open(row + step[0], column + step[1]);
    });
    document.addEventListener("squelch:theme", draw);
    new ResizeObserver(draw).observe(canvas.parentElement);
    draw();
    canvas.dataset.drawn = "1";
  });

  squelch.on("canvas[data-scale]", (canvas) => {
    function draw() {
      const context = canvas.getContext("2d");
      const paint = painter(canvas.dataset.scale);
      for (let x = 0; x < canvas.width; x++) {
        const share = x / (canvas.width - 1);
        context.fillStyle = `rgb(${paint(canvas.dataset.scale === "posterior" ? share : 4 * share - 2).map(Math.round).join(" ")})`;
        context.fillRect(x, 0, 1, canvas.height);
      }
    }
    document.addEventListener("squelch:theme", draw);
    draw();
  });
});
