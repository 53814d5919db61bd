// Keys, theme, and tooltips. Every page works without them; htmx exchanges pages, and the URL is the state.
"use strict";

const squelch = (window.squelch = {
  starters: [],
  /** Runs `start` on each element that matches, now and whenever a page is exchanged. */
  on(selector, start) { squelch.starters.push([selector, start]); },
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); },
  tip(text, event) {
    const tip = document.getElementById("tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
  },
});

function begin(root) {
  for (const [selector, start] of squelch.starters) {
    for (const element of root.querySelectorAll(selector)) {
      if (element.dataset.begun) continue;
      element.dataset.begun = "1";
      start(element);
    }
  }
}

// --- the selected row ---

const rows = () => [...document.querySelectorAll("#main [data-row]")];
const current = () => document.querySelector("#main [data-row].at");

function choose(row) {
  current()?.classList.remove("at");
  row.classList.add("at");
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  choose(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))]);
}

// --- keys ---

const PLACES = { r: "./", g: "groups", s: "scores", m: "templates", l: "timeline", f: "figures", w: "where" };
let prefix = 0;

function follow(selector) { document.querySelector(selector)?.click(); }

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("squelch-theme", root.dataset.theme);
  document.dispatchEvent(new Event("squelch:theme"));
}

const ACTIONS = {
  j: () => move(1),
  k: () => move(-1),
  Enter: () => current()?.querySelector("[data-open]")?.click(),
  "[": () => follow("#main a[rel=prev]"),
  "]": () => follow("#main a[rel=next]"),
  "/": () => (document.querySelector("#main .filters input[type=search]") ?? document.getElementById("search")).select(),
  "?": () => document.getElementById("help").showModal(),
  t: theme,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (Date.now() - prefix < 1200 && event.key in PLACES) {
    prefix = 0;
    event.preventDefault();
    follow(`#nav a[href="${PLACES[event.key]}"]`);
  } else if (event.key === "g") {
    prefix = Date.now();
  } else if (event.key in ACTIONS && !(event.key === "Enter" && event.target.closest("a, button, summary"))) {
    event.preventDefault();
    ACTIONS[event.key]();
  }
});

// --- pointer ---

document.addEventListener("click", (event) => {
  if (event.target.closest("#theme")) theme();
  if (event.target.closest("#keys")) document.getElementById("help").showModal();
  const row = event.target.closest("tr[data-row]");
  if (row && !event.target.closest("a, button") && !String(getSelection())) row.querySelector("[data-open]")?.click();
});

document.addEventListener("mouseover", (event) => {
  const token = event.target.closest?.(".sampled i");
  if (!token) return event.target.closest?.("canvas") ? undefined : squelch.tip("");
  const nats = Number(token.dataset.p);
  squelch.tip(`p ${Math.exp(nats).toPrecision(2)}   ${nats.toFixed(2)} nats`, event);
});

// A filter that is not set stays out of the address.
document.addEventListener("htmx:configRequest", (event) => {
  const { parameters } = event.detail;
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
});

// A step of a live run does not close what a reader has opened.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.matches("#overview:has(details[open])") && event.detail.requestConfig.elt.hidden) event.detail.shouldSwap = false;
});

document.addEventListener("htmx:load", (event) => begin(event.detail.elt.parentElement ?? document));
document.addEventListener("htmx:afterSettle", () => squelch.tip(""));
document.addEventListener("DOMContentLoaded", () => begin(document));
