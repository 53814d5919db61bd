// The lanes of the actors on a canvas. Drag moves, the wheel zooms, and the address bar follows.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const [LANE, GAP, LEFT, HEAD] = [22, 7, 96, 26];
  const HUES = { work: "--accent", call: "--zero", weights: "--goal", score: "--b6", checkpoint: "--box" };

  squelch.on("[data-lanes]", (frame) => {
    const canvas = frame.querySelector("canvas");
    const whole = Number(frame.dataset.end);
    let [from, to] = [Number(frame.dataset.from), Number(frame.dataset.to)];
    let data = null, late = 0, asked = 0, drag = null;

    const x = (time) => LEFT + ((time - from) / (to - from)) * (canvas.clientWidth - LEFT - 6);
    const time = (at) => from + ((at - LEFT) / (canvas.clientWidth - LEFT - 6)) * (to - from);
    const seconds = (value) => (value < 0.1 ? `${(1000 * value).toFixed(0)} ms` : value < 90 ? `${value.toFixed(2)} s` : `${(value / 60).toFixed(1)} min`);

    async function load() {
      const mine = ++asked;
      const answer = await fetch(`${frame.dataset.lanes}?from=${from.toFixed(4)}&to=${to.toFixed(4)}`);
      if (!answer.ok || mine !== asked) return;
      data = await answer.json();
      if (!frame.isConnected) return;  // the reader has left the page, whose address it would change
      history.replaceState(history.state, "", `timeline?from=${from.toFixed(2)}&to=${to.toFixed(2)}`);
      draw();
      tables();
      frame.dataset.drawn = "1";
    }

    function show(start, end) {
      const size = Math.max(0.02, Math.min(end - start, whole * 1.1 + 1));
      from = Math.max(-0.05 * whole, Math.min(start, whole * 1.05 - size * 0.1));
      to = from + size;
      draw();
      clearTimeout(late);
      late = setTimeout(load, 90);
    }

    function draw() {
      const lanes = data?.lanes ?? [];
      const height = HEAD + lanes.length * (LANE + GAP) + 6;
      const ratio = devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = height * ratio;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.font = `11.5px ${squelch.colour("--sans")}`;
      context.textBaseline = "middle";
      context.save();
      context.beginPath();
      context.rect(LEFT, 0, canvas.clientWidth - LEFT, height);
      context.clip();
      axis(context, height);
      for (const [start, end] of data?.bubbles ?? []) hatch(context, x(start), x(end), HEAD);
      lanes.forEach((lane, row) => {
        const y = HEAD + row * (LANE + GAP);
        for (const [start, end, name] of [...lane.spans].sort((one) => (one[2] === "call" ? -1 : 1))) {
          context.fillStyle = squelch.colour(HUES[name] ?? "--wall");
          const inset = name === "call" ? 0 : 3;
          context.fillRect(x(start), y + inset, Math.max(1, x(end) - x(start)), LANE - 2 * inset);
        }
      });
      context.restore();
      context.fillStyle = squelch.colour("--ink");
      lanes.forEach((lane, row) => context.fillText(lane.actor, 8, HEAD + row * (LANE + GAP) + LANE / 2, LEFT - 16));
      document.getElementById("range").textContent = `${seconds(to - from)} from ${seconds(Math.max(0, from))}`;
    }

    function axis(context, height) {
      context.fillStyle = squelch.colour("--dim");
      context.strokeStyle = squelch.colour("--line");
      let last = -100;
      for (const [step, when] of data?.steps ?? []) {
        const at = Math.round(x(when)) + 0.5;
        context.beginPath();
        context.moveTo(at, 16);
        context.lineTo(at, height);
        context.stroke();
        if (at - last > 46) {
          context.fillText(`step ${step}`, at - context.measureText(`step ${step}`).width - 4, 9);
          last = at;
        }
      }
    }

    function hatch(context, start, end, y) {
      context.save();
      context.beginPath();
      context.rect(start, y, Math.max(1, end - start), LANE);
      context.clip();
      context.globalAlpha = 0.55;
      context.strokeStyle = squelch.colour("--bad");
      context.beginPath();
      for (let at = Math.max(start, 0) - LANE; at < Math.min(end, canvas.clientWidth); at += 6) {
        context.moveTo(at, y + LANE);
        context.lineTo(at + LANE, y);
      }
      context.stroke();
      context.restore();
    }

    function line(name, share, text) {
      const row = document.createElement("tr");
      const meter = document.createElement("meter");
      meter.value = share;
      for (const part of [name, meter, text]) {
        const cell = document.createElement("td");
        cell.append(part);
        row.append(cell);
      }
      row.lastChild.className = "num";
      return row;
    }

    function tables() {
      document.getElementById("waiting").textContent = `${(100 * data.waiting).toFixed(0)}% of this interval`;
      document.getElementById("busy").replaceChildren(...data.lanes.map((lane) => line(lane.actor, lane.busy, `${(100 * lane.busy).toFixed(1)}%`)));
      const longest = [...data.bubbles].sort((a, b) => b[1] - b[0] - (a[1] - a[0])).slice(0, 12);
      document.getElementById("bubbles").replaceChildren(
        ...longest.map(([start, end, filled]) => {
          const row = line(`${seconds(end - start)} at ${seconds(start)}`, filled[0]?.[1] ?? 0, filled.map(([actor, share]) => `${actor} ${(100 * share).toFixed(0)}%`).join("  ") || "nobody worked");
          row.addEventListener("click", () => show(start - (end - start) * 0.4, end + (end - start) * 0.4));
          return row;
        }),
      );
    }

    function under(event) {
      const box = canvas.getBoundingClientRect();
      const [at, row] = [time(event.clientX - box.left), Math.floor((event.clientY - box.top - HEAD) / (LANE + GAP))];
      const lane = data?.lanes[row];
      if (!lane) return "";
      const found = lane.spans.filter(([start, end]) => start <= at && at <= end).sort((a, b) => a[1] - a[0] - (b[1] - b[0]))[0];
      if (found) return `${lane.actor} ${found[2]}${found[3] === null ? "" : `, step ${found[3]}`}\n${seconds(found[1] - found[0])}`;
      const bubble = lane.actor === "learner" && data.bubbles.find(([start, end]) => start <= at && at <= end);
      return bubble ? `bubble, ${seconds(bubble[1] - bubble[0])}\n${bubble[2].map(([actor, share]) => `${actor} ${(100 * share).toFixed(0)}%`).join("\n")}` : "";
    }

    const zoom = (factor, centre = (from + to) / 2) => show(centre - (centre - from) * factor, centre + (to - centre) * factor);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + ((event.deltaX || event.deltaY) / 800) * (to - from), to + ((event.deltaX || event.deltaY) / 800) * (to - from));
      else zoom(Math.exp(event.deltaY / 500), time(event.clientX - canvas.getBoundingClientRect().left));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { drag = [event.clientX, from, to]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => (drag = null));
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return squelch.tip(under(event), event);
      const by = ((event.clientX - drag[0]) / (canvas.clientWidth - LEFT)) * (drag[2] - drag[1]);
      show(drag[1] - by, drag[2] - by);
    });
    canvas.addEventListener("mouseleave", () => squelch.tip(""));
    canvas.addEventListener("keydown", (event) => {
      const size = to - from;
      const act = { ArrowLeft: () => show(from - size / 5, to - size / 5), ArrowRight: () => show(from + size / 5, to + size / 5), "+": () => zoom(0.5), "-": () => zoom(2), "=": () => zoom(0.5) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    document.getElementById("zoom").addEventListener("click", (event) => {
      const by = event.target.dataset.zoom;
      if (by) by === "all" ? show(0, whole) : zoom(Number(by));
    });
    addEventListener("resize", draw);
    document.addEventListener("squelch:theme", draw);
    load();
  });
});
