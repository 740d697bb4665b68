// A tool for the tests whose effect is a line in a file that another process owns.
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

export default function (pi: ExtensionAPI) {
  pi.registerTool({
    name: "charge",
    label: "charge",
    description: "Charges somebody",
    parameters: { type: "object", properties: { who: { type: "string" } }, required: ["who"] } as never,
    async execute(_id, params) {
      const { who } = params as { who: string };
      const answer = await fetch(`${process.env.OUTSIDE}/effects`, { method: "POST", body: who });
      return { content: [{ type: "text" as const, text: `charged ${who}: ${await answer.text()}` }], details: undefined };
    },
  });
}
