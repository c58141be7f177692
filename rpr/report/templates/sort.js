// A click on a heading sorts the rows of its table; missing values stay last.
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, at) => head.querySelector('button').addEventListener('click', () => {
    const down = head.ariaSort !== 'descending', sign = down ? -1 : 1;
    for (const other of heads) other.ariaSort = null;
    head.ariaSort = down ? 'descending' : 'ascending';
    const key = row => row.cells[at].dataset.key;
    const compare = (a, b) => {
      if (!key(a) || !key(b)) return !key(a) - !key(b);
      return sign * (isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b));
    };
    body.append(...[...body.rows].sort(compare));
  }));
}
