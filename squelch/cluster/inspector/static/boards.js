// The dashboards' panels: those in the window are fetched, one after the other, and again while the run goes on.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  squelch.on("[data-boards]", (frame) => {
    const seen = new Set(), due = [];
    let busy = false;

    async function draw(panel) {
      try {
        const answer = await fetch(`${frame.dataset.boards}&panel=${panel.dataset.panel}`);
        const text = await answer.text();
        if (answer.ok) {
          const open = panel.querySelector("details")?.open;
          panel.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.children);
          const table = panel.querySelector("details");
          if (table && open !== undefined) table.open = open;
        } else {
          say(panel, text);
        }
      } catch {
        say(panel, "the inspector does not answer");
      }
      panel.dataset.drawn = "1";
    }

    function say(panel, text) {
      const line = Object.assign(document.createElement("p"), { className: "none", textContent: text });
      panel.replaceChildren(line);
    }

    async function work() {
      if (busy) return;
      busy = true;
      for (let panel = due.shift(); panel && frame.isConnected; panel = due.shift()) if (seen.has(panel)) await draw(panel);
      busy = false;
      if (frame.isConnected) frame.dataset.idle = "1";
    }

    function ask(panels) {
      delete frame.dataset.idle;
      due.push(...[...panels].filter((panel) => !due.includes(panel)));
      work();
    }

    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) isIntersecting ? seen.add(target) : seen.delete(target);
      ask(entries.filter((entry) => entry.isIntersecting && !entry.target.dataset.drawn).map((entry) => entry.target));
    }, { rootMargin: "120px" });
    frame.querySelectorAll("[data-panel]").forEach((panel) => watch.observe(panel));

    const again = setInterval(() => {
      if (!frame.isConnected) { clearInterval(again); watch.disconnect(); return; }
      if (document.hidden || !document.querySelector("#status-line[hx-get]")) return;
      frame.querySelectorAll("[data-drawn]").forEach((panel) => seen.has(panel) || delete panel.dataset.drawn);
      ask(seen);
    }, 1000 * frame.dataset.refresh);
  });
});
