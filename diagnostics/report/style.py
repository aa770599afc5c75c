"""The style of a report: light and dark, on paper, on a phone.

The seven colours of stages differ in lightness as well as in hue, so that people who see no red,
green or blue can distinguish them too (at least 12 in OKLab, times 100, in every simulation), and
contrast with their background (at least 2.3 to 1).
"""

NUM_COLOURS = 7

BASE = """\
:root{color-scheme:light dark;
--page:#ffffff;--card:#f6f8fa;--line:#d0d7de;--text:#1f2328;--soft:#57606a;--idle:#eaeef2;--hatch:#8c959f;--spec:#0550ae;--good:#1a7f37;--bad:#bc4c00;
--c1:#5479f5;--c2:#cd470c;--c3:#0cb6ac;--c4:#cc981b;--c5:#b23da3;--c6:#044b30;--c7:#5b0a91;--c0:#6e7781}
@media screen and (prefers-color-scheme:dark){:root{
--page:#0d1117;--card:#161b22;--line:#30363d;--text:#e6edf3;--soft:#9198a1;--idle:#1c2128;--hatch:#6e7681;--spec:#79c0ff;--good:#3fb950;--bad:#f0883e;
--c1:#05a6fe;--c2:#9f3f07;--c3:#2be6d7;--c4:#feda4a;--c5:#eb62b4;--c6:#659c00;--c7:#7b4dce;--c0:#8b949e}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1640px;font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
background:var(--page);color:var(--text);font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
h1{margin:0 0 16px;font-size:20px;line-height:1.3}
h2{margin:0 0 4px;font-size:16px}
section{min-width:0;margin:0 0 32px}
p{margin:0 0 12px}
.soft,small{color:var(--soft)}
small{display:block;font-size:12px;line-height:1.4}
code,.mono{font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
"""

STYLE = (
    BASE
    + """\
.verdict{padding:16px 20px;border:1px solid var(--line);border-left:6px solid var(--bad);border-radius:8px;background:var(--card)}
.verdict.consumer{border-left-color:var(--good)}
.verdict.unknown{border-left-color:var(--c0)}
.verdict .sentence{margin:0;font-size:18px;line-height:1.4;font-weight:600}
.verdict h2{margin-top:16px}
.verdict ol{margin:0;padding-left:22px}
.verdict li{margin:2px 0;max-width:130ch}
.facts{display:grid;grid-template-columns:1fr 1fr 1.2fr 1.5fr;gap:12px;margin:12px 0 0}
.facts>div{padding:12px 16px;border:1px solid var(--line);border-radius:8px}
dt{font-size:12px;font-weight:600;color:var(--soft)}
dd{margin:0}
dd b{font-size:22px;line-height:1.3;font-weight:600}
.delays{display:flex;gap:4px 20px;flex-wrap:wrap}
.stages,.workers{container-type:inline-size}
.body{display:grid;grid-template-columns:minmax(0,1fr);column-gap:32px}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;overflow-wrap:normal}
th,td{padding:7px 14px 7px 0;text-align:left;vertical-align:top;border-top:1px solid var(--line);font-weight:400}
thead th{border-top:0;font-size:12px;font-weight:600;color:var(--soft);vertical-align:bottom;white-space:nowrap}
.workers thead th{white-space:normal}
th:last-child,td:last-child{padding-right:0}
.number{text-align:right;white-space:nowrap}
.whole{white-space:nowrap}
.stage{min-width:190px;overflow-wrap:anywhere}
.spec{min-width:150px;max-width:280px;overflow-wrap:anywhere}
.name{font-weight:600}
.id{display:inline-block;min-width:1.4em;color:var(--soft)}
.mark{padding:0 6px;border:1px solid var(--bad);border-radius:9px;font-size:12px;font-weight:600;color:var(--bad);
white-space:nowrap}
.swatch{display:inline-block;width:12px;height:12px;margin-right:6px;border-radius:2px;vertical-align:-1px;background:var(--c)}
.bar{display:block;min-width:90px;height:8px;margin:5px 0 2px;border-radius:2px;background:var(--idle)}
.bar i{display:block;height:100%;border-radius:2px;background:var(--c)}
.good{--c:var(--good)}
.bad{--c:var(--bad)}
.waiting,.bar .waiting,.timeline svg{background:repeating-linear-gradient(135deg,var(--hatch) 0 1px,var(--idle) 1px 5px)}
.idle{background:var(--idle)}
.swatch,.bar,.bar i,.timeline svg,.graph svg{-webkit-print-color-adjust:exact;print-color-adjust:exact;forced-color-adjust:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 10px;padding:0;list-style:none;font-size:12px}
.timeline td,.timeline th{padding-top:2px;padding-bottom:2px;border-top:0;vertical-align:middle}
.timeline tr.process>*{padding-top:8px;border-top:1px solid var(--line)}
.timeline .thread{width:1%;min-width:150px;max-width:230px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.timeline .number{width:1%}
.timeline svg{display:block;width:100%;height:26px;border-radius:2px}
.dense .timeline svg{height:16px}
.dense .timeline{font-size:12px;line-height:1.3}
.timeline .free{fill:var(--idle)}
.timeline .absent{fill:var(--page)}
.timeline .grid{fill:none;stroke:var(--text);stroke-opacity:.18;vector-effect:non-scaling-stroke}
.timeline path{fill:var(--c)}
.axis{position:relative;display:block;height:18px}
.axis span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.axis span:first-child{transform:none}
.graph svg.gm{display:block}
.graph svg.gm .gm-back{fill:none}
.graph svg.gm .gm-box{fill:var(--card);stroke:var(--c);stroke-width:2}
.graph svg.gm .gm-heat{fill:var(--c)}
.graph svg.gm .gm-rule{stroke:var(--line)}
.graph svg.gm text{fill:var(--soft)}
.graph svg.gm .gm-title,.graph svg.gm .gm-note{fill:var(--text)}
.graph svg.gm .gm-spec{fill:var(--spec)}
.chain .graph svg.gm{max-width:100%;height:auto}
@media (min-width:1000px){
.chain.body{grid-template:"graph stages" auto "graph timeline" auto "graph workers" 1fr/auto minmax(0,1fr)}
.chain .graph{grid-area:graph;width:min-content}
.chain .stages{grid-area:stages}
.chain .times{grid-area:timeline}
.chain .workers{grid-area:workers}
.chain .graph svg.gm{max-width:400px}
}
@media (max-width:900px){
.facts{grid-template-columns:1fr 1fr}
}
@media (max-width:760px){
body{padding:14px}
.facts{gap:8px}
.facts>div{padding:8px 10px}
.facts .wide{grid-column:span 2}
dd b{font-size:18px}
.verdict .sentence{font-size:16px}
}
@container (max-width:900px){
.cards,.cards tbody,.cards tr,.cards td,.cards th{display:block}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards tr{display:grid;
grid-template-columns:repeat(auto-fill,minmax(135px,1fr));gap:4px 16px;padding:10px 0;border-top:1px solid var(--line)}
.cards td,.cards th{padding:0;border:0;min-width:0;max-width:none;text-align:left;white-space:normal}
.cards td::before{content:attr(data-label);display:block;font-size:12px;font-weight:600;color:var(--soft)}
.cards .stage,.cards .spec{grid-column:1/-1}
}
@media (max-width:760px){
.timeline,.timeline thead,.timeline tbody{display:block}
.timeline tr{display:grid;grid-template-columns:1fr auto auto;gap:0 10px;padding:3px 0}
.timeline thead tr>:nth-child(-n+3){display:none}
.timeline tr>:last-child{grid-column:span 3}
.timeline tr>*,.timeline tr.process>*{padding:0;border:0;width:auto}
.timeline tr.process{margin-top:6px;border-top:1px solid var(--line)}
.timeline .thread{width:auto;max-width:none;min-width:0}
.timeline .number::after{content:" " attr(data-label);color:var(--soft)}
}
@media print{
body{padding:0;font-size:11px}
.body{display:block}
section{break-inside:auto}
tr,.verdict,.facts>div{break-inside:avoid}
.scroll{overflow:visible}
.graph svg.gm{max-width:100%;height:auto}
}
"""
)
