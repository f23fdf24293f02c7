// Pictures to go with the next message: from a file, the clipboard or a drop; shown until they are sent.

const MOST_PIXELS = 1280; // of the longer side; larger ones are scaled down
const MOST_IMAGES = 4;

export class Images {
  // `page`: {images, file, attach, panel}; onChange(words or null)
  constructor(page, onChange) {
    this.page = page;
    this.onChange = onChange;
    this.urls = [];
    page.attach.addEventListener("click", () => page.file.click());
    page.file.addEventListener("change", () => {
      this.add([...page.file.files]); // a copy: clearing the field empties its own list
      page.file.value = "";
    });
    addEventListener("paste", (event) => event.clipboardData.files.length && this.add([...event.clipboardData.files]));
    // anywhere on the page, or the browser would leave it to show what was dropped
    addEventListener("dragover", (event) => {
      event.preventDefault();
      page.panel.classList.add("over");
    });
    addEventListener("dragleave", (event) => event.relatedTarget || page.panel.classList.remove("over"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      page.panel.classList.remove("over");
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    for (const file of files) {
      if (this.page.attach.hidden) return this.onChange("This model takes no pictures.");
      if (this.urls.length >= MOST_IMAGES) return this.onChange(`At most ${MOST_IMAGES} pictures go with a message.`);
      try {
        this.urls.push(await scaled(file));
      } catch {
        return this.onChange(`${file.name} is no picture that this browser can read.`);
      }
      this.show();
    }
    this.onChange(null);
  }

  // What was added, once.
  take() {
    const urls = this.urls;
    this.urls = [];
    this.show();
    return urls;
  }

  show() {
    this.page.images.hidden = !this.urls.length;
    this.page.images.replaceChildren(...this.urls.map((url, index) => this.thumbnail(url, index)));
  }

  thumbnail(url, index) {
    const item = document.createElement("li");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove picture ${index + 1}`);
    remove.addEventListener("click", () => {
      this.urls.splice(index, 1);
      this.show();
      this.onChange(null);
    });
    item.append(picture(url, `Picture ${index + 1}`), remove);
    return item;
  }
}

export function picture(url, words) {
  const image = document.createElement("img");
  image.src = url;
  image.alt = words;
  return image;
}

async function scaled(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.9);
}
