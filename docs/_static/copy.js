// A button on each block of code: copies its text.
for (const block of document.querySelectorAll("div.highlight pre")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent.trimEnd());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.parentElement.append(button);
}
