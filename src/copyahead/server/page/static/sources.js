// What the tints stand for, in the order of the legend.

export const SOURCES = {
  prompt: { name: "prompt", from: "Copied from the prompt" },
  output: { name: "own text", from: "Copied from what this answer has written" },
  prediction: { name: "prediction", from: "Copied from the predicted output" },
  shared: { name: "shared store", from: "Copied from another conversation of this key" },
  model: { name: "draft model", from: "Drafted by the draft model" },
  grammar: { name: "grammar", from: "The only way that the grammar leaves" },
};

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** What is known of a run `{source, match, drafted, accepted}`, in one sentence or two. */
export function describe(run) {
  const known = SOURCES[run.source];
  const parts = [known ? known.from : "Chosen by the model, not copied"];
  if (run.match > 0) parts[0] += `, after a match of ${plural(run.match, "token")}`;
  parts.push(
    run.drafted > 0
      ? `${run.accepted} of ${plural(run.drafted, "drafted token")} kept in this round`
      : "no draft in this round",
  );
  return `${parts.join("; ")}.`;
}
