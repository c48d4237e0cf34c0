"use strict";
// The parts of the page: each is built from texts, never from markup.

const byId = id => document.getElementById(id);

function element(name, text = "", options = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  if (options.css) made.className = options.css;
  if (options.scope) made.scope = options.scope;
  if (options.title) made.title = options.title;
  if (options.value !== undefined) made.dataset.value = String(options.value);
  made.append(...(options.inside || []));
  return made;
}

const row = cells => element("tr", "", { inside: cells });
const cell = (text, options) => element("td", text, options);
const heading = (text, options = {}) => element("th", text, { scope: "row", ...options });
const commandLine = ({ what, command }) => element("p", "", {
  css: "soft", inside: [`To ${what}${command ? ": " : ""}`, ...(command ? [element("code", command)] : [])] });

// A table's rows are made anew; a button that had the keyboard's focus has it again.
function fill(table, rows) {
  const body = byId(table).tBodies[0], focused = body.contains(document.activeElement)
    ? document.activeElement.getAttribute("aria-label") : null;
  body.replaceChildren(...rows);
  if (focused) [...body.querySelectorAll("button")].find(each => each.getAttribute("aria-label") === focused)?.focus();
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

const megabytes = bytes => `${(bytes / 1e6).toFixed(1)} MB`;
const whole = number => Number(number).toLocaleString("en");
const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
const minute = moment => moment ? moment.slice(0, 16).replace("T", " ") : "-";

const FORMS = { clients: whole, bytes: megabytes, seconds: value => value.toFixed(2), share: value => value.toFixed(3),
  "%": value => `${(100 * value).toFixed(1)} %`, number: value => value.toPrecision(4) };

// A number of a round, as its column of the catalogue says.
const figure = (line, { key, unit }) => typeof line[key] === "number" ? FORMS[unit](line[key]) : "-";

function roundRow(line, columns) {
  const first = heading(`${line.round}${line.mandatory ? "*" : ""}`, { value: line.round });
  const others = columns.map(column => cell(figure(line, column), { value: line[column.key] }));
  const made = row([first, ...others]);
  made.dataset.round = line.round;
  return made;
}

const CLASSES = { joined: "good", resting: "odd", silent: "odd", slow: "odd", failed: "bad", away: "bad", left: "odd" };

// A decision's sign, above a bar of its colour: the letters keep the page's own, which can be read on its ground.
function sign(word, looks) {
  const look = looks[word] || { sign: "?", title: word };
  const made = element("span", look.sign, { css: "sign", title: look.title });
  if (look.colour) made.style.borderBottomColor = look.colour;
  return made;
}

function strip(decisions, looks) {
  const shown = element("span", "", { css: "strip", inside: decisions.map(word => sign(word, looks)) });
  shown.setAttribute("role", "img");
  shown.setAttribute("aria-label", decisions.length ? decisions.join(", ") : "none yet");
  return shown;
}

function clientRow(client, states, looks) {
  const names = client.name ? [element("span", client.name, { css: "name" }), element("span", client.client)]
    : [element("span", client.client)];
  const state = [element("span", client.state, { css: CLASSES[client.state] || "", title: states[client.state] })];
  if (client.why) state.push(element("span", client.why, { css: "why" }));
  const made = row([
    heading("", { inside: names }), cell("", { inside: state, value: client.state }),
    cell("", { inside: [strip(client.recent, looks)] }),
    cell(client.answered ? `round ${client.answered}` : "-", { value: client.answered }),
    cell(client.seen ? minute(client.seen) : "-"),
    cell(typeof client.examples === "number" ? whole(client.examples) : "-"),
  ]);
  made.dataset.client = client.client;
  made.dataset.state = client.state;
  return made;
}

function refusedRow(each) {
  const who = each.name || each.client || `node ${each.node}`;
  const last = typeof each.time === "number" ? minute(new Date(1000 * each.time).toISOString()) : "-";
  return row([heading(who), cell(each.reason, { css: "text" }), cell(whole(each.times)), cell(last)]);
}
