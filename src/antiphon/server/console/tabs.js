// Panels as tabs where there is no room for all of them; on wide screens style.css shows them side by side.

export class Tabs {
  constructor(body, tabs) {
    this.body = body;
    this.tabs = tabs;
    tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => this.choose(nameOf(tab)));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(index + step + tabs.length) % tabs.length];
        this.choose(nameOf(next));
        next.focus();
      });
    });
  }

  choose(name) {
    this.body.dataset.tab = name;
    for (const tab of this.tabs) {
      const chosen = nameOf(tab) === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
  }
}

function nameOf(tab) {
  return tab.id.replace("tab-", "");
}
