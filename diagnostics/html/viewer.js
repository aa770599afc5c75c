"use strict";
(() => {
  const follow = (rel) => {
    const link = document.querySelector(`a[rel~="${rel}"]`);
    if (link) { keep(); location.assign(link.href); }
  };
  const place = `scroll ${document.body.dataset.kind}`;
  const keep = () => sessionStorage.setItem(place, scrollY);
  for (const link of document.querySelectorAll('a[rel="prev"],a[rel="next"]')) link.addEventListener("click", keep);
  const kept = sessionStorage.getItem(place);
  if (kept !== null) { sessionStorage.removeItem(place); scrollTo(0, Number(kept)); }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,audio")) return;
    const action = {
      ArrowLeft: () => follow("prev"), ArrowRight: () => follow("next"),
      k: () => follow("before"), j: () => follow("after"), Escape: () => follow("up"),
      g: () => document.querySelector("input").focus(),
    }[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  for (const details of document.querySelectorAll("details[data-path]")) {
    const key = `open ${details.dataset.path}`;
    const state = sessionStorage.getItem(key);
    if (state !== null) details.open = state === "1";
    details.addEventListener("toggle", () => sessionStorage.setItem(key, details.open ? "1" : "0"));
  }

  for (const sound of document.querySelectorAll(".sound")) {
    const audio = sound.querySelector("audio"), picture = sound.querySelector("svg"), line = sound.querySelector(".head-line");
    const seconds = Number(sound.dataset.seconds);
    audio.addEventListener("timeupdate", () => {
      const x = 600 * audio.currentTime / seconds;
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      sound.classList.add("playing");
    });
    audio.addEventListener("play", () => {
      for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
    });
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      audio.currentTime = Math.min(audio.duration || 0, seconds * (event.clientX - box.left) / box.width);
      audio.play();
    });
  }
})();
