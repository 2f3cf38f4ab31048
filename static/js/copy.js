// Buttons that copy the text of the element that their `data-copy` names.

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch { // not allowed, or not over HTTPS: select it for the keyboard
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    button.textContent = "Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});
