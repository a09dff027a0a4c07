/* Browsers start no worker for a page that was opened from a disk. The search of the site then works in a frame of its
   own, which this class shows to it as a worker. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === this.inside)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve));
      this.inside.document.open();
      this.inside.document.write(`<html><body><script>
        window.postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));
        window.importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((resolve) => {
          const script = document.createElement("script");
          script.src = url;
          script.addEventListener("load", resolve);
          document.body.appendChild(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body></html>`);
      this.inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
