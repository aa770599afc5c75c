"""The style of the pages, light and dark, on a desktop and on a phone, and the few parts that need
a script.
"""

from gristmill.diagnostics.report.style import BASE

STYLE = (
    BASE
    + """\
body{padding:0;max-width:none;min-height:100vh;display:flex;flex-direction:column}
a{color:inherit;text-decoration:none}
a:focus-visible,summary:focus-visible,input:focus-visible,svg:focus-visible{outline:2px solid var(--c1);outline-offset:2px}
.sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
header{position:sticky;top:0;z-index:1;display:grid;grid-template-columns:minmax(0,1fr) auto minmax(0,1fr);gap:8px 20px;
align-items:center;padding:10px 28px;background:var(--page);border-bottom:1px solid var(--line)}
header .name{font-weight:600;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
header .name small{font-weight:400;overflow:hidden;text-overflow:ellipsis}
nav{display:flex;align-items:center;gap:6px}
nav h1{min-width:150px;margin:0;font-size:15px;font-weight:600;text-align:center;white-space:nowrap}
nav h1 small{display:inline;font-weight:400;font-size:13px}
.step{display:grid;place-items:center;width:34px;height:34px;border:1px solid var(--line);border-radius:8px;color:var(--soft);
font-size:18px;line-height:1}
a.step:hover{background:var(--card);color:var(--text)}
span.step{opacity:.35}
header form{justify-self:end;width:100%;max-width:230px}
input{width:100%;height:34px;padding:0 12px;border:1px solid var(--line);border-radius:8px;background:var(--card);color:inherit;
font:inherit}
input::placeholder{color:var(--soft)}
main{flex:1;width:100%;max-width:1480px;margin:0 auto;padding:24px 28px 40px}
footer{padding:0 28px 24px;text-align:center;font-size:12px;color:var(--soft)}
kbd{padding:1px 6px;border:1px solid var(--line);border-radius:5px;background:var(--card);font:11px ui-monospace,Menlo,monospace}
h2{font-size:15px;margin:0}
.head{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 14px;margin:0 0 12px}
.head .links{margin-left:auto;display:flex;gap:14px}
.head a,.more a,.reason a{color:var(--spec)}
.head a:hover,.more a:hover,.reason a:hover{text-decoration:underline}
.soft{font-size:13px;margin:0}
.more{margin:16px 0 0;font-size:13px;display:flex;gap:18px;justify-content:center}
section{margin:0 0 36px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px}
table{width:100%;border-collapse:collapse;overflow-wrap:normal}
th,td{padding:8px 16px;text-align:left;vertical-align:middle;font-weight:400;border-top:1px solid var(--line)}
thead th{border-top:0;background:var(--card);font-size:12px;font-weight:600;color:var(--soft);white-space:nowrap}
tbody th{font-weight:600}
td.number{text-align:right;white-space:nowrap}
tbody tr:hover{background:var(--card)}
.key{color:var(--soft)}
.docs{list-style:none;display:grid;gap:4px;margin:0 0 4px;padding:0}
.docs li{display:flex;gap:8px;min-width:0;padding:1px 0 1px 8px;border-left:3px solid var(--c1)}
.docs li:nth-child(even){border-color:var(--c2)}
.docs .pad,.docs .pad:nth-child(even){border-color:var(--line);color:var(--soft)}
.docs .text{margin:0;min-width:0}
.spec{color:var(--spec);white-space:nowrap}
.range{white-space:nowrap}
.hist{display:block;width:150px;height:26px;fill:var(--c1);opacity:.85;overflow:visible}
.full .hist{width:100%;max-width:420px;height:64px;margin:4px 0}
.flag{display:inline-block;padding:0 7px;border:1px solid var(--bad);border-radius:9px;font-size:12px;color:var(--bad);
white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(168px,1fr));gap:16px}
.tile,.card{display:block;min-width:0;border:1px solid var(--line);border-radius:10px;overflow:hidden;background:var(--page)}
a.tile:hover,.card:hover{border-color:var(--hatch)}
.tile .pictures{display:grid;aspect-ratio:1;background:var(--card);border-bottom:1px solid var(--line)}
.tile .pictures{grid-auto-flow:column;grid-auto-columns:minmax(0,1fr)}
.tile img{width:100%;height:100%;min-height:0;object-fit:contain}
.tile .caption{padding:8px 12px 10px;font-size:13px}
.tile .caption p,.card .caption p{margin:0}
.caption p{display:grid;grid-template-columns:minmax(0,auto) minmax(0,1fr);gap:10px}
.caption p span:last-child{text-align:right;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.tiny{image-rendering:pixelated}
.cards{display:grid;gap:14px}
.card{padding:14px 18px}
.card>h3,.stages h3{margin:0 0 8px;font-size:12px;font-weight:600;color:var(--soft)}
.card>h3 a:hover{color:var(--text);text-decoration:underline}
.fields{margin:0;display:grid;gap:14px}
.field{display:grid;grid-template-columns:170px minmax(0,1fr);gap:2px 20px}
.field dt{font-size:13px;color:var(--text);overflow-wrap:anywhere}
.field dt small{font-weight:400;color:var(--spec)}
.field dd{min-width:0}
dd{margin:0}
.full .fields{gap:0}
.full .field{padding:14px 0;border-top:1px solid var(--line)}
.full>.fields>.field:first-child{border-top:0}
.group{grid-column:1/-1;min-width:0}
.group>summary{cursor:pointer;font-size:13px;font-weight:600}
.group>summary small{display:inline;font-weight:400}
.group>.fields{margin:8px 0 0 5px;padding-left:16px;border-left:2px solid var(--idle)}
.full .group{padding:12px 0;border-top:1px solid var(--line)}
.full>.fields>.group:first-child,.group>.fields>:first-child{border-top:0;padding-top:2px}
.group>.fields>:last-child{padding-bottom:2px}
.pictures{display:flex;flex-wrap:wrap;gap:8px}
.field .pictures img{max-width:100%;max-height:220px;height:auto;border-radius:6px;background:var(--card)}
.field .pictures .tiny{min-width:min(140px,100%)}
.full .field .pictures img{max-height:70vh}
.full .field .pictures .tiny{min-width:min(280px,100%)}
.text{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:7.6em;overflow:auto;max-width:92ch}
.full .text{max-height:60vh}
.bytes,pre{font:12px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{margin:8px 0 0;padding:12px 14px;border-radius:8px;background:var(--card);overflow:auto;max-height:420px;white-space:pre}
pre.wrap{white-space:pre-wrap;overflow-wrap:anywhere}
.values{overflow-wrap:anywhere}
details.plain{margin-top:6px}
details.plain>summary{cursor:pointer;font-size:13px;color:var(--soft)}
.sound svg{display:block;width:100%;max-width:720px;height:72px;border-radius:8px;background:var(--card);cursor:pointer}
.sound .wave{fill:var(--c3);opacity:.8}
.sound .head-line{stroke:var(--text);stroke-width:1.5;vector-effect:non-scaling-stroke;opacity:0}
.sound.playing .head-line{opacity:.7}
audio{display:block;width:100%;max-width:720px;height:36px;margin-top:8px}
.notice{max-width:760px;margin:8vh auto;text-align:center}
.notice h2{font-size:20px;margin:0 0 6px}
.notice p{color:var(--soft)}
.notice .more a{padding:7px 16px;border:1px solid var(--line);border-radius:8px;color:inherit}
.notice .more a:hover{background:var(--card);text-decoration:none}
.notice pre{text-align:left}
.failed{padding:18px 22px;border:1px solid var(--line);border-left:5px solid var(--bad);border-radius:10px}
.failed h2{font-size:16px;margin:0 0 6px}
.failed p{margin:0 0 6px;white-space:pre-wrap;overflow-wrap:anywhere}
.bad{color:var(--bad)}
.stages{list-style:none;margin:0;padding:0 0 0 22px;border-left:2px solid var(--line)}
.stages>li{position:relative;padding:0 0 22px}
.stages>li::before{content:"";position:absolute;left:-28px;top:5px;width:8px;height:8px;border:2px solid var(--hatch);
border-radius:50%;background:var(--page)}
.stages>li.same::before{border-color:var(--line)}
.stages>li.same{padding-bottom:12px;font-size:13px;color:var(--soft)}
.stages>li.failing::before{border-color:var(--bad);background:var(--bad)}
.stages h3{margin:0 0 8px;font-size:13px;color:var(--text)}
.stages h3 small,.stages .same small{display:inline;font-weight:400;margin-left:8px}
.reason{padding:10px 14px;border-radius:8px;background:var(--card);font-size:13px;color:var(--soft)}
@media (max-width:760px){
header{grid-template-columns:minmax(0,1fr) auto;padding:8px 14px}
header .name{grid-column:1/-1;display:flex;gap:10px;align-items:baseline}
header .name small{min-width:0;white-space:nowrap}
nav h1{min-width:0}
nav h1{font-size:14px}
header nav{order:2}
header form{order:1;max-width:none}
.step{width:38px;height:38px}
input{height:38px;font-size:16px}
main{padding:16px 14px 32px}
footer{display:none}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}
.overview .key{display:none}
.field{grid-template-columns:minmax(0,1fr)}
.field dt{display:flex;gap:10px;align-items:baseline}
.field dt small{display:inline}
.card{padding:12px 14px}
th,td{padding:7px 12px}
.overview .distribution{display:none}
.head .links{margin-left:0}
}
"""
)

SCRIPT = """\
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
"""
