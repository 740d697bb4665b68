// A permission extension for the tests, as Pi knows them: asks before each charge, unless it was told "Always" before.
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

export default function (pi: ExtensionAPI) {
  let always = false;
  pi.on("tool_call", async (event, ctx) => {
    if (event.toolName !== "charge" || always) return;
    const answer = await ctx.ui.select(`Charge ${event.input.who}?`, ["Once", "Always", "No"]);
    if (answer === "Always") always = true;
    if (answer !== "Once" && answer !== "Always") return { block: true, reason: "Blocked by user" };
  });
}
