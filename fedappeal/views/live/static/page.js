"use strict";
// Shows what the server tells: everything first, then what changes.

const shown = { run: null, clients: null, refused: [], failures: [], superlink: null, members: null, actions: null,
  rounds: [], states: {}, looks: {} };
const MOST_ROUNDS = 200, MOST_ATTENTION = 8;
const columns = () => shown.run ? shown.run.columns : [];

const parts = {
  run: showRun,
  members: showMembers,
  clients: showClients,
  refused: () => {
    byId("refused-part").hidden = !shown.refused.length;
    fill("refused", shown.refused.map(refusedRow));
    showAttention();
  },
  failures: () => {
    byId("failures-part").hidden = !shown.failures.length;
    fill("failures", shown.failures.map(each => row([heading(each.reason), cell(whole(each.times))])));
  },
  superlink: showRuns,
  actions: showActions,
  rounds: showRounds,
};

function showRun() {
  const run = shown.run;
  const listed = shownRun();
  byId("title").textContent = document.title = run ? run.title
    : listed && listed.strategy ? `${listed.strategy} on ${listed.task}` : "No run yet";
  byId("where").textContent = run ? `${run.folder}${run.seed === null ? "" : `, seed ${run.seed}`}`
    : listed ? listed.folder : "";
  byId("restarted").hidden = !run || !run.restarted;
  if (run && run.restarted) {
    const moment = minute(new Date(1000 * run.restarted).toISOString());
    byId("restarted").textContent = `The SuperLink came back at ${moment} (UTC), and continued this run.`;
  }
  const bar = byId("progress");
  bar.hidden = !run || !run.total;
  if (run && run.total) {
    bar.max = run.total;
    bar.value = run.last;
  }
  showStatus();
  showFacts();
}

function showStatus() {
  const run = shown.run;
  if (!run) {
    const listed = shownRun(), said = listed && (listed["under-way"]
      ? "its server process is starting; its folder is not there yet, or not seen from this machine"
      : "its folder is not seen from this machine");
    say("status", listed ? `run ${listed["run-id"]}: ${listed.status}; ${said}` : "no run is shown");
    return;
  }
  const of = `of ${whole(run.total)}`;
  const said = {
    waiting: `waiting for clients${run.last ? `, after round ${whole(run.last)} ${of}` : ""}: ${run.awaited}`,
    running: `running: round ${whole(run.round)} ${of}`,
    finished: `finished after round ${whole(run.last)} ${of}`,
    failed: `failed after round ${whole(run.last)} ${of}`,
    interrupted: `interrupted after round ${whole(run.last)} ${of}`,
    stopped: `stopped after round ${whole(run.last)} ${of}`,
  }[run.state] || run.state;
  say("status", run.reason ? `${said}: ${run.reason}` : said);
}

// The run that is shown as the SuperLink has it, where it has it.
const shownRun = () => shown.superlink && shown.superlink.runs.find(run => run["run-id"] === shown.superlink.shown);

// Screen readers say a status each time that it is set, so it is set where it changes alone.
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function showFacts() {
  const run = shown.run, clients = shown.clients, facts = [];
  if (run && run.latest) {
    const line = run.latest, sums = run.sums;
    for (const column of run.columns.filter(({ key, figure }) => figure && typeof line[key] === "number")) {
      facts.push([column.title, figure(line, column)]);
    }
    facts.push(["joined, of asked", `${whole(sums.joined)} of ${whole(sums.asked)}`]);
    facts.push(["sat out", whole(sums.sat_out)], ["left for good", whole(sums.left)]);
    facts.push(["absent", whole(sums.absent)], ["failed", whole(sums.failed)]);
    facts.push(["sent up", megabytes(sums.bytes_up)], ["sent down", megabytes(sums.bytes_down)]);
    facts.push(["rounds took", duration(sums.seconds)]);
  }
  if (run && run.left !== null) facts.unshift(["time left, about", duration(run.left)]);
  if (run && run.state === "running" && run.since) {
    facts.push(["this round, so far", duration(Math.max(0, Date.now() / 1000 - run.since))]);
  }
  if (clients && clients.online !== null) facts.unshift(["connected", whole(clients.online)]);
  byId("facts").replaceChildren(...facts.map(([name, value]) => {
    const made = element("div", "", { inside: [element("dt", name), element("dd", value)] });
    made.dataset.fact = name;
    return made;
  }));
}

function showClients() {
  const clients = shown.clients;
  const counts = Object.entries(clients.counts).map(([state, number]) => `${whole(number)} ${state}`);
  const all = clients.total > clients.rows.length ? `; ${whole(clients.rows.length)} of them are shown` : "";
  say("counts", clients.total ? `${plural(clients.total, "client")}: ${counts.join(", ")}${all}` : "none yet");
  const strikes = Boolean(shown.members && shown.members.register);
  byId("strike").hidden = !strikes;
  fill("clients", clients.rows.map(client => {
    const made = clientRow(client, shown.states, shown.looks), name = client.name || client.client;
    // Names need not differ, and the keyboard's focus goes to the button of the same label.
    const label = client.name ? `Unregister ${name} (${client.client})` : `Unregister ${name}`;
    const can = button("Unregister", label, () => ask(
      `Unregister ${name} for good? Its key (${client.client}) is never admitted again. To come `
      + "back, the device needs a new key and a new invitation.",
      () => send("/unregister", { node: client.node }, "members-said"), "Unregister for good"));
    if (strikes) made.append(cell("", { inside: client.node ? [can] : [] }));
    return made;
  }));
  const told = Object.keys(clients.counts).filter(state => shown.states[state] && !["joined", "sat out"].includes(state));
  const legend = Object.entries(shown.looks).flatMap(([word, look]) => [sign(word, shown.looks), ` ${look.title}; `]);
  byId("signs").replaceChildren(...legend, told.map(state => `${state}: ${shown.states[state]}`).join("; "));
  showAttention();
  showFacts();
}

function showMembers() {
  const members = shown.members;
  byId("members-part").hidden = !members;
  if (!members) return;
  byId("members-commands").replaceChildren(...members.commands.map(commandLine));
  byId("invite").hidden = !members.invite;
  byId("invite").elements.uses.max = members["most-uses"];
  byId("register-part").hidden = !members.register;
  byId("invitations-part").hidden = !members.invitations.length;
  say("invitations-none", members.problem || (members.invite && !members.invitations.length ? "no invitation yet" : ""));
  fill("invitations", members.invitations.map(({ name, status, uses, used, expires, by }) => {
    const can = button("Withdraw", `Withdraw the invitation of ${name}`, () => ask(
      `Withdraw the invitation of ${name}? Its line admits no further device; who has joined by it stays.`,
      () => send("/withdraw", { name }, "members-said"), "Withdraw"));
    const more = used > by.length ? ` and ${whole(used - by.length)} more` : "";
    return row([heading(name), cell("", { inside: status === "open" ? [can] : [] }),
      cell(status, { css: status === "open" ? "good" : "" }), cell(`${whole(used)} of ${whole(uses)}`),
      cell(minute(expires)), cell(`${by.join(", ") || "-"}${more}`, { css: "text" })]);
  }));
}

// The line is shown on this page alone, and this once: no other page is told, and none that is loaded again.
function showInvitation(name, line) {
  byId("invited").hidden = !line;
  byId("invited-whom").textContent = line
    ? `Send ${name} this line by a way that strangers cannot read, and keep no copy: it is shown this once.` : "";
  byId("line").textContent = line;
  byId("copied").textContent = "";
}

// Who an operator looks at first: clients in trouble, those that wait for something, and those that were refused.
function showAttention() {
  const said = shown.clients.attention.map(({ client, name, state, why }) =>
    [name || client, state, why || shown.states[state]]);
  for (const each of shown.refused) said.push([each.name || each.client || `node ${each.node}`, each.kind, each.reason]);
  const lines = said.slice(0, MOST_ATTENTION).map(([who, state, why]) => element("li", "", {
    inside: [element("strong", who), `: ${state}; ${why}`] }));
  if (said.length > lines.length) lines.push(element("li", `and ${whole(said.length - lines.length)} more below`));
  byId("attention-part").hidden = !lines.length;
  byId("attention").replaceChildren(...lines);
}

function showRounds() {
  byId("rounds-part").hidden = !shown.rounds.length;
  const head = byId("rounds").tHead.rows[0];
  const names = ["round", ...columns().map(({ title }) => title)];
  head.replaceChildren(...names.map(name => element("th", name, { scope: "col" })));
  fill("rounds", shown.rounds.map(line => roundRow(line, columns())).reverse());
  const asked = shown.rounds.some(line => line.mandatory) ? "* asked not to opt out. " : "";
  byId("rounds-note").textContent = shown.rounds.length >= MOST_ROUNDS
    ? `${asked}The latest ${MOST_ROUNDS} rounds; the run's history.jsonl has all.` : asked;
}

function addRounds(fresh) {
  const last = shown.rounds.length ? shown.rounds.at(-1).round : 0;
  const added = fresh.filter(line => line.round > last);
  if (!added.length) return;
  if (!shown.rounds.length) {
    shown.rounds = added.slice(-MOST_ROUNDS);
    showRounds();
    return;
  }
  shown.rounds = [...shown.rounds, ...added].slice(-MOST_ROUNDS);
  const body = byId("rounds").tBodies[0];
  for (const line of added) body.prepend(roundRow(line, columns()));
  while (body.rows.length > MOST_ROUNDS) body.lastElementChild.remove();
}

function showActions() {
  const actions = shown.actions;
  byId("stop").hidden = !actions.stop;
  byId("resume").hidden = !actions.resume;
  byId("extend-part").hidden = !actions.extend;
  const extended = shown.run ? `${shown.run.folder} ${shown.run.total}` : "";
  if (actions.extend && byId("total").dataset.of !== extended) {
    byId("total").dataset.of = extended;
    byId("total").value = 2 * shown.run.total;
  }
  byId("start-part").hidden = !actions.files.length;
  if ([...byId("files").options].map(option => option.value).join() !== actions.files.join()) {
    byId("files").replaceChildren(...actions.files.map(file => element("option", file)));
  }
  byId("commands").replaceChildren(...actions.commands.map(commandLine));
  byId("control").hidden = !(actions.stop || actions.resume || actions.extend || actions.files.length
    || actions.commands.length || byId("said").textContent);
}

function showRuns() {
  const superlink = shown.superlink;
  byId("runs-part").hidden = !superlink || !(superlink.runs.length || superlink.problem);
  if (!superlink) return;
  byId("superlink").textContent = superlink.problem || `SuperLink ${superlink.address}`;
  byId("warning").textContent = superlink.warning;
  byId("warning").hidden = !superlink.warning;
  byId("latest").hidden = superlink.latest;
  fill("runs", superlink.runs.map(run => {
    const id = run["run-id"], is = id === superlink.shown, can = [];
    if (!is) can.push(button("Show", `Show run ${id}`, () => send("/choose", { run: id })));
    if (run.seen) {
      const report = element("a", "Report");
      report.href = `/report?run=${id}`;
      report.target = "_blank";
      report.setAttribute("aria-label", `Report of run ${id}`);
      can.push(report);
    }
    if (run["under-way"]) {
      can.push(button("Stop", `Stop run ${id}`, () => ask(`Stop run ${id}?`, () => send("/stop", { run: id }))));
    }
    return row([heading(is ? `${id} (shown)` : id), cell("", { inside: can }), cell(run.status), cell(run.strategy || "-"),
      cell(run.task || "-"), cell(minute(run.started))]);
  }));
  if (!shown.run) showRun();
}

function ask(question, then, yes = "Yes") {
  const sure = byId("sure");
  byId("question").textContent = question;
  byId("yes").textContent = yes;
  byId("yes").onclick = () => { sure.close(); then(); };
  byId("no").onclick = () => sure.close();
  sure.showModal();
  byId("no").focus();
}

function button(text, label, act) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

// Ask the server for something, and show what it answers; where the answer is a secret, ``keep`` takes it instead.
async function send(where, body = {}, place = "said", keep = null) {
  if (place === "said") byId("control").hidden = false;
  say(place, "…");
  try {
    const answer = await fetch(where, { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" } });
    const told = await answer.text();
    const said = answer.headers.get("content-type")?.startsWith("application/json") ? JSON.parse(told).said : told;
    if (answer.ok && keep) keep(said);
    say(place, answer.ok && keep ? "" : said);
    return answer.ok;
  } catch (error) {
    say(place, "the page's process does not answer");
    return false;
  }
}

// A form that is sent once for each press: its button waits for the answer.
function onSubmit(id, act) {
  const form = byId(id), pressed = form.querySelector("button");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    if (pressed.disabled) return;
    pressed.disabled = true;
    if (await act(Object.fromEntries(new FormData(form)))) form.reset();
    pressed.disabled = false;
  });
}

byId("stop").addEventListener("click", () => ask("Stop the run? What is finished stays.", () => send("/stop")));
byId("resume").addEventListener("click", () => send("/resume"));
byId("extend").addEventListener("click", () => send("/resume", { rounds: byId("total").value }));
byId("start").addEventListener("click", () => send("/start", { file: byId("files").value }));
byId("latest").addEventListener("click", () => send("/choose"));
onSubmit("register", body => send("/register", body, "members-said"));
onSubmit("invite", body => {
  showInvitation("", "");
  return send("/invite", body, "members-said", line => {
    showInvitation(body.name, line);
    byId("line").focus();
  });
});
byId("copy").addEventListener("click", async () => {
  window.getSelection().selectAllChildren(byId("line"));
  try {
    await navigator.clipboard.writeText(byId("line").textContent);
    say("copied", "copied");
  } catch (error) {  // a page that is published by plain HTTP may not
    say("copied", "selected: copy it by the keyboard or the menu");
  }
});
byId("forget").addEventListener("click", () => showInvitation("", ""));
window.addEventListener("pagehide", () => showInvitation("", ""));

// Charts: made by the server on demand, drawn by Plotly.
const charts = { figures: [], of: 0, due: 0, waiting: false, rounds: -1, plotly: null };

function plotly() {
  charts.plotly ??= new Promise((resolve, reject) => {
    const script = element("script");
    script.onload = resolve;
    script.onerror = reject;
    script.src = "/plotly.js";
    document.head.append(script);
  });
  return charts.plotly;
}

async function refreshCharts() {
  const last = shown.run ? shown.run.last : 0;
  const over = shown.run && !["waiting", "running"].includes(shown.run.state);
  if (charts.waiting || charts.rounds === last || document.hidden || (Date.now() < charts.due && !over)) return;
  charts.waiting = true;
  try {
    const told = await (await fetch("/charts.json")).json();
    charts.due = Date.now() + 1000 * Math.max(5, told.again);
    byId("charts-part").hidden = false;
    byId("charts-note").textContent = told.note;
    say("verdict", told.verdict);
    if (told.charts.length) {
      await plotly();
      showCharts(told.charts, last || (shown.run ? shown.run.last : 0));  // the first ones may come before the run does
    } else {
      charts.figures = [];
      byId("charts").replaceChildren();
    }
    charts.rounds = last;
  } catch (error) {
    byId("charts-note").textContent = "the charts could not be loaded";
    charts.due = Date.now() + 10000;
  } finally {
    charts.waiting = false;
  }
}

function showCharts(found, last) {
  // What this page was told when it was opened may be older than the charts.
  charts.of = Math.max(last, ...found.filter(({ figure }) => figure.layout.meta?.column)
    .map(({ figure }) => figure.data[0].x.at(-1)));
  if (charts.figures.length !== found.length || !byId("charts").querySelector(".js-plotly-plot")) {
    byId("charts").replaceChildren(...found.map((chart, number) => {
      const box = element("div", "", { css: chart.tall ? "chart tall" : "chart" });
      box.id = `chart-${number}`;
      box.setAttribute("role", "img");
      return element("figure", "", { inside: [element("h3", chart.title), box, element("figcaption")] });
    }));
  }
  charts.figures = found;
  drawCharts();
}

// A curve of a column of the history gets the rounds that came after it was made: it is as new as the table.
function withRounds(figure) {
  const key = figure.layout.meta?.column, [trace] = figure.data;
  if (!key) return figure;
  const [over, under] = key.split("/"), value = line => under ? line[over] / line[under] : line[over];
  const fresh = shown.rounds.filter(line => line.round > trace.x.at(-1) && Number.isFinite(value(line)));
  if (!fresh.length) return figure;
  return { ...figure, data: [{ ...trace, mode: "lines", x: [...trace.x, ...fresh.map(line => line.round)],
    y: [...trace.y, ...fresh.map(line => figure.layout.meta.scale * value(line))] }] };
}

function drawCharts(all = true) {
  charts.figures.forEach((chart, number) => {
    const box = byId(`chart-${number}`), place = box.parentElement;
    const figure = withRounds(chart.figure), old = shown.run && shown.run.last > charts.of && figure === chart.figure;
    place.firstElementChild.textContent = old ? `${chart.title} (to round ${whole(charts.of)})` : chart.title;
    place.lastElementChild.textContent = chart.alt;
    box.className = box.className.replace(/\btall\b/, "").trim() + (chart.tall ? " tall" : "");
    box.setAttribute("aria-label", chart.alt);
    if (all || figure !== chart.figure) drawFigure(box.id, figure);
  });
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts());

// What is new: asked for once a second, one question at a time.
const asked = { seen: 0, waiting: false };
const lost = text => {
  byId("lost").hidden = !text;
  say("lost", text);
};

function show({ seen, anew, rounds, ...sections }) {
  asked.seen = seen;
  Object.assign(shown, sections, anew ? { rounds } : {});
  if (!anew) addRounds(rounds);
  for (const [name, part] of Object.entries(parts)) if (anew || name in sections) part();
  if (anew) charts.rounds = -1;
  if (!anew && rounds.length) drawCharts(false);
  refreshCharts();
}

async function look() {
  if (asked.waiting) return;
  asked.waiting = true;
  const after = shown.rounds.length ? shown.rounds.at(-1).round : 0;
  let news = null;
  try {
    const answer = await fetch(`/data.json?seen=${asked.seen}&after=${after}`);
    if (answer.ok) news = await answer.json();
    lost(answer.status === 403 ? "This page was refused: visit the address that was printed, or reload."
      : !news || news.failed
      ? "What is new cannot be read: the log of the process that serves this page says why. What is shown is the last it told."
      : "");
  } catch (error) {
    lost(shown.run && !["waiting", "running"].includes(shown.run.state)
      ? "The run is over, and the command that served this page has ended with it. What is shown is the run's end."
      : "Not connected: the process that serves this page has ended, with its run or before, or does not answer. What is shown is the last it told.");
  }
  asked.waiting = false;
  if (news) show(news);
}
look();
window.setInterval(look, 1000);
window.setInterval(() => { showFacts(); refreshCharts(); }, 2000);
