// A button on every block of code that copies it, without the prompts ("$ ") of transcripts.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this block of code");
    button.addEventListener("click", async () => {
      const lines = block.textContent.trimEnd().split("\n");
      const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.parentElement.append(button);
  }
});
