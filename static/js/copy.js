// Copy buttons: `data-copy` holds the id of the element whose text is copied.

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch { // permission denied, or no HTTPS: select the text, so that Ctrl+C copies it
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    button.textContent = "Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});
