// A tool for the tests that runs other tools, as Pi's codemode does: `twice` runs the given bash commands in order.
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

export default function (pi: ExtensionAPI) {
  pi.registerTool({
    name: "twice",
    label: "twice",
    description: "Runs bash commands",
    parameters: { type: "object", properties: { commands: { type: "array", items: { type: "string" } } }, required: ["commands"] } as never,
    async execute(_id, params, _signal, _onUpdate, ctx) {
      const content = [];
      for (const command of (params as { commands: string[] }).commands) {
        content.push(...(await ctx.executeTool("bash", { command })).result.content);
      }
      return { content, details: undefined };
    },
  });
}
