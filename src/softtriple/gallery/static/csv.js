// Tables for other programs, written in the browser and saved as files.

const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);

export const csv = (rows) => rows.map((row) => row.map((value) => quoted(String(value))).join(",")).join("\n");

export function save(name, text) {
  const url = URL.createObjectURL(new Blob([`${text.trimEnd()}\n`], { type: "text/csv" }));
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
