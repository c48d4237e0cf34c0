"use strict";
const at = (id) => document.getElementById(id);
const made = (tag, text, kind) => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const megabytes = (bytes) => (bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
// A moment in local time, always in this form.
const moment = (seconds) => {
  const at = new Date(1000 * seconds);
  return new Date(at - 60000 * at.getTimezoneOffset()).toISOString().slice(0, 16).replace("T", " ");
};
const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
let shown = "";
let confirmed = null;

async function act(name, body) {
  const answer = await fetch(`/do/${name}`, { method: "POST", body: JSON.stringify(body || {}) });
  at("said").textContent = (await answer.json()).said;
  at("said").className = answer.ok ? "" : "bad";
  await look();
  if (answer.ok && (name === "preset" || name === "limits")) await limits();
}

function ask(question, then) {
  at("question").textContent = question;
  confirmed = then;
  at("sure").showModal();
}

const button = (text, label, then) => {
  const element = made("button", text);
  element.type = "button";
  element.setAttribute("aria-label", label);
  element.addEventListener("click", then);
  return element;
};
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const offer = (element, costs) => {
  const whole = made("p", "", "offer");
  whole.append(element, made("span", sentence(costs)));
  return whole;
};
const drawn = (tag, facts) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(facts)) element.setAttribute(name, value);
  return element;
};
const figure = (value, share) => (share ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4));

function curve(measure) {
  const { rounds, scores, alone_score: alone } = measure;
  const all = alone === null ? scores : [...scores, alone];
  const low = measure.share ? 0 : Math.min(...all), high = measure.share ? 1 : Math.max(...all);
  const first = rounds[0], last = rounds[rounds.length - 1];
  const x = (round) => 70 + 520 * (last === first ? 1 : (round - first) / (last - first));
  const y = (score) => 160 - 145 * (high === low ? .5 : (score - low) / (high - low));
  const whole = drawn("svg", { viewBox: "0 0 600 190", role: "img", "aria-label": `${measure.metric} of the shared model ` +
    `on your test data, rounds ${first} to ${last}: now ${measure.shared}${alone === null ? "" : `, alone ${measure.alone}`}` });
  const text = (content, at) => {
    const element = drawn("text", at);
    element.textContent = content;
    whole.append(element);
  };
  whole.append(drawn("path", { d: "M70 10V160H590", class: "axes" }));
  text(figure(high, measure.share), { x: 64, y: y(high) + 4, "text-anchor": "end" });
  text(figure(low, measure.share), { x: 64, y: y(low) + 4, "text-anchor": "end" });
  text(`round ${first}`, { x: 70, y: 180 });
  text(`round ${last}`, { x: 590, y: 180, "text-anchor": "end" });
  if (alone !== null) {
    whole.append(drawn("path", { d: `M70 ${y(alone)}H590`, class: "alone" }));
    text("mine alone", { x: 588, y: y(alone) + 16, "text-anchor": "end" });
  }
  whole.append(drawn("path", { d: scores.map((score, n) => `${n ? "L" : "M"}${x(rounds[n])} ${y(score)}`).join(""), class: "shared" }));
  scores.forEach((score, n) => whole.append(drawn("circle", { cx: x(rounds[n]), cy: y(score), r: 2.5, class: "point" })));
  return whole;
}

const take = (model) => {
  const link = made("a", "Take the model", "button");
  link.href = `/model/${encodeURIComponent(model.name)}`;
  link.setAttribute("aria-label", `Take the model: ${model.title}`);
  link.download = "";
  return offer(link, `a copy of ${megabytes(model.bytes)}; it stays here, too`);
};

function measured(runs) {
  const run = runs.find((one) => one.measure);
  if (!run) return [made("p", "No shared model has been measured on your test data yet.")];
  const { measure } = run, own = measure.prefers === "own";
  const lines = [made("p", `${measure.metric} on your test data: shared ${measure.shared}` +
    (measure.alone === null ? "" : `, mine alone ${measure.alone}`), "big")];
  lines.push(made("p", `${run.name}: you would use ${own ? "your own model" : "the shared model"}` +
    (measure.model ? `, kept in ${measure.model.file}` : "; its file is kept at the end of the run")));
  if (run.goodwill) lines.push(made("p", run.goodwill));
  if (measure.model) lines.push(take(measure.model));
  return [...lines, curve(measure)];
}

function decision(data) {
  const row = document.createElement("tr");
  const when = made("td", moment(data.at));
  when.append(made("div", data.run, "soft"));
  const round = data.what === "rested" ? `after ${data.round || "the roll call"}` : data.round || "roll call";
  const what = made("td", data.what, "decision");
  if (data.colour) what.style.borderLeftColor = data.colour;
  row.append(when, made("td", round, data.round ? "" : "roll-call"), what, made("td", data.why));
  return row;
}

function receipt(data) {
  const row = document.createElement("tr");
  const when = made("td", moment(data.time));
  when.append(made("div", data.run, "soft"));
  const told = made("td", `${data.told}; ${megabytes(data.bytes)}${data.sent ? "" : ", not known to have arrived"}`);
  told.append(made("div", `SHA-256 ${data.hash}`, "soft"));
  row.append(when, made("td", data.round || "roll call", data.round ? "" : "roll-call"), made("td", `${data.kind}: ${data.decision}`), told);
  return row;
}

function article(run) {
  const whole = document.createElement("article");
  whole.append(made("h3", run.name), made("p", run.line, run.state === "damaged" ? "bad" : ""));
  if (run.last) {
    whole.append(made("p", `joined ${run.joined}, sat out ${run.sat_out}, failed ${run.failed}; ` +
      `${run.seconds.toFixed(1)} s of work; ${megabytes(run.bytes_up)} up, ${megabytes(run.bytes_down)} down; ` +
      `no message since ${moment(run.last)}`, "soft"));
    if (run.judged) whole.append(made("p", run.judged));
    if (run.goodwill) whole.append(made("p", run.goodwill));
  }
  if (run.can_approve) {
    const costs = "this device trains for it, within the limits below; a change of its settings asks again";
    whole.append(offer(button("Approve", `Approve ${run.name}`, () => act("approve", { run: run.run })), costs));
  }
  if (run.can_leave) {
    const costs = `this device trains for it no more; ${run.joined || 0} rounds that it joined stay in the shared model`;
    whole.append(offer(button("Leave for good", `Leave for good: ${run.name}`, () =>
      ask(`Leave ${run.name} for good? ${sentence(costs)}`, () => act("leave", { run: run.run }))), costs));
  }
  return whole;
}

function kept(model) {
  const whole = document.createElement("article");
  whole.append(made("h3", model.title), made("p", model.figure), made("p", model.file, "soft"), take(model));
  return whole;
}

// A file of the owner's goes to this device's own page, and what each kept model says of it is shown.
async function use(file) {
  if (!file) return;
  at("answers").replaceChildren();
  at("tried").className = "";
  at("tried").textContent = `${file.name}: the models are at work`;
  try {
    const answer = await fetch(`/trial?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    const said = answer.headers.get("content-type").startsWith("application/json") ? await answer.json()
      : { said: await answer.text() };
    at("tried").textContent = answer.ok ? file.name : said.said;
    at("tried").className = answer.ok ? "" : "bad";
    if (answer.ok) at("answers").replaceChildren(...said.models.map(answered));
  } catch {
    at("tried").textContent = "this page's process does not answer";
    at("tried").className = "bad";
  }
}

function answered({ title, answers, problem }) {
  const whole = document.createElement("article"), list = document.createElement("ol");
  list.append(...answers.map(({ label, probability }) => made("li", typeof probability === "number"
    ? `${label} (${(100 * probability).toFixed(1)} %)` : label)));
  whole.append(made("h3", title), problem ? made("p", problem, "bad") : list);
  return whole;
}

async function look() {
  let text;
  try {
    const answer = await fetch("/data.json");
    if (!answer.ok) throw new Error(answer.status);
    text = await answer.text();
  } catch {
    at("lost").hidden = false;
    return;
  }
  at("lost").hidden = true;
  if (text === shown) return;
  shown = text;
  const data = JSON.parse(text);
  at("name").textContent = document.title = data.name;
  at("client").textContent = data.name === data.client ? "" : `client-id ${data.client}`;
  const [headline, ...more] = data.line.split("; ");
  at("status").textContent = `${data.name} ${headline}.`;
  at("more").textContent = more.map(sentence).join(" ");
  at("battery").textContent = data.battery === null ? "" : ` battery ${data.battery} %`;
  at("pause").parentElement.hidden = data.paused;
  at("resume").parentElement.hidden = !data.paused;
  at("come-back").parentElement.hidden = !data.runs.some((run) => run.left);
  at("none").hidden = data.runs.length > 0;
  at("no-models").hidden = data.models.length > 0;
  at("trial").hidden = data.models.length === 0;
  at("measure").replaceChildren(...measured(data.runs));
  at("decisions").replaceChildren(...data.decisions.map(decision));
  at("broken").textContent = data.sent.problem;
  at("sent").replaceChildren(...data.sent.receipts.map(receipt));
  at("runs").replaceChildren(...data.runs.map(article));
  at("models").replaceChildren(...data.models.map(kept));
  at("erase-costs").textContent = `Forgets the requirements, ${counted(data.models.length, "kept model")} ` +
    `(${megabytes(data.models.reduce((sum, model) => sum + model.bytes, 0))}) and what was done in ` +
    `${counted(data.runs.length, "run")}; the next run trains a requirement anew. The client-id and the noise key stay.`;
}

async function limits() {
  const data = await (await fetch("/limits.json")).json();
  at("problem").textContent = data.problem;
  at("presets").replaceChildren(...data.presets.map((preset) => {
    const choice = button(preset.name, preset.name, () =>
      ask(`Take ${preset.name}? It replaces all limits. ${sentence(preset.costs)}`, () => act("preset", { preset: preset.name })));
    choice.setAttribute("aria-pressed", preset.name === data.preset);
    return offer(choice, preset.costs);
  }));
  at("fields").replaceChildren(...data.limits.map((limit) => {
    const label = made("label", `${limit.key} `);
    const input = document.createElement("input");
    input.name = limit.key;
    if (typeof limit.value === "boolean") {
      input.type = "checkbox";
      input.checked = limit.value;
    } else {
      input.type = "text";
      input.inputMode = typeof limit.value === "number" ? "decimal" : "text";
      input.value = limit.value;
    }
    input.dataset.kind = typeof limit.value;
    label.append(input, made("span", limit.unit ? `${limit.help} (${limit.unit})` : limit.help));
    if (limit.instead !== null) label.append(made("strong", ` ${limit.instead} counts, by --limits`));
    return label;
  }));
}

const valueOf = (input) => {
  if (input.dataset.kind === "boolean") return input.checked;
  const text = input.value.trim();
  return input.dataset.kind === "number" && text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
};

at("file").addEventListener("change", () => use(at("file").files[0]));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  at("trial").addEventListener(kind, (event) => {
    event.preventDefault();
    at("trial").classList.toggle("over", kind.startsWith("drage") || kind === "dragover");
    if (kind === "drop") use(event.dataTransfer.files[0]);
  });
}
at("pause").addEventListener("click", () => act("pause"));
at("resume").addEventListener("click", () => act("resume"));
at("come-back").addEventListener("click", () => act("come-back"));
at("erase").addEventListener("click", () =>
  ask(`Erase what this device remembers? ${at("erase-costs").textContent}`, () => act("erase")));
at("no").addEventListener("click", () => at("sure").close());
at("yes").addEventListener("click", () => { at("sure").close(); confirmed(); });
at("limits").addEventListener("submit", (event) => {
  event.preventDefault();
  const inputs = [...at("fields").querySelectorAll("input")];
  act("limits", Object.fromEntries(inputs.map((input) => [input.name, valueOf(input)])));
});
look();
limits();
setInterval(() => { if (!document.hidden) look(); }, 1000);
