// What a reader sees of a page, for test_page_in_browser.py.
(() => {
  const all = [...document.querySelectorAll('main *, header *')].flatMap(one => [...one.childNodes]);
  const texts = all.filter(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  const channels = text => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = colour => {
    const [x, y, z] = colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const below = element => {
    if (!element) return [255, 255, 255];
    const colour = channels(getComputedStyle(element).backgroundColor);
    return colour.length === 4 && colour[3] === 0 ? below(element.parentElement) : colour;
  };
  const scrolls = element => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  return {
    // The contrast ratio of every text to its background (WCAG 2, relative luminance), ascending.
    contrasts: () => texts.map(node => {
      const colours = [channels(getComputedStyle(node.parentElement).color), below(node.parentElement)];
      const [a, b] = colours.map(luminance).sort((x, y) => y - x);
      return [Math.round(100 * (a + 0.05) / (b + 0.05)) / 100, node.textContent.trim().slice(0, 60)];
    }).sort((x, y) => x[0] - y[0]),
    // Elements beyond the right edge of the window that are not inside a scrolling box.
    cutOff: () => [...document.querySelectorAll('body *')].filter(element => {
      const box = element.getBoundingClientRect();
      if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
      for (let one = element.parentElement; one; one = one.parentElement) if (scrolls(one)) return false;
      return true;
    }).map(element => element.outerHTML.slice(0, 120)),
  };
})()
