/** Starts the page. */
import "./styles/index.css";
import "uplot/dist/uPlot.min.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { warmUp } from "./graph/layouts.ts";
import { connect, followVisibility } from "./state/mesh.ts";
import { applyPrefs } from "./state/prefs.ts";
import { listen } from "./state/route.ts";
import { exchangeCode, followCodes } from "./state/session.ts";

async function start(): Promise<void> {
  applyPrefs();
  await exchangeCode();
  listen();
  warmUp();
  connect();
  followVisibility();
  followCodes(connect);
  render(<App />, document.getElementById("page")!);
}

void start();
