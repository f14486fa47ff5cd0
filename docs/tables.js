// The theme wraps tables so that a wide one scrolls; this lets the keyboard scroll it, too.
document$.subscribe(() => {
  for (const one of document.querySelectorAll(".md-typeset__scrollwrap")) {
    one.tabIndex = 0;
    one.setAttribute("role", "group");
    one.setAttribute("aria-label", "table");
  }
});
