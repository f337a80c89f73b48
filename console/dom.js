// Elements and texts. Everything that comes from the server becomes a text node: no markup is ever parsed here.

const SVG = "http://www.w3.org/2000/svg";

function put(element, name, value) {
    if (value === undefined || value === null || value === false) return;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
}

function build(element, props, children) {
    for (const [name, value] of Object.entries(props ?? {})) put(element, name, value);
    for (const child of children.flat(Infinity)) {
        if (child === undefined || child === null || child === false) continue;
        element.append(child instanceof Node ? child : String(child));
    }
    return element;
}

/** h("p", {class: "note"}, "text", other): an element; strings among the children are text. */
export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);

/** The same for a part of a picture. */
export const svg = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);

/** Replaces what stands in an element. */
export function fill(element, ...children) {
    element.replaceChildren();
    return build(element, null, children);
}

// ---- text that may hold anything ----

// Control characters, marks that change the direction of the text, blanks without width, and single surrogates.
const HIDDEN = new RegExp(
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e" +
        "\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb]|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
    "g",
);
const MARKS_MAX = 500; // more of them in one text are written as plain text
const CUT = 300; // characters that a cell shows
const PIECE = 8192; // characters of a long text that the browser lays out together

const nameOf = (character) => "U+" + character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");

/** A text with its hidden characters written as ⟨U+202E⟩. */
export const plain = (text) => text.replace(HIDDEN, (character) => `⟨${nameOf(character)}⟩`);

/** The same as nodes, where each hidden character is an element that stands out. */
export function visible(text) {
    const found = [...text.matchAll(HIDDEN)];
    if (found.length === 0) return [text];
    if (found.length > MARKS_MAX) return [plain(text)];
    const nodes = [];
    let at = 0;
    for (const match of found) {
        nodes.push(text.slice(at, match.index), h("span", { class: "hidden-char" }, nameOf(match[0])));
        at = match.index + match[0].length;
    }
    nodes.push(text.slice(at));
    return nodes;
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** An id in a list: of a UUID its beginning, since its page has it whole. */
export const id = (value) =>
    UUID.test(value) ? h("span", { title: value }, `${value.slice(0, 8)}…`) : data(value, { max: 60 });

/** Where a text can be cut without splitting a character. */
function cutAt(text, length) {
    const code = text.charCodeAt(length - 1);
    return code >= 0xd800 && code <= 0xdbff ? length - 1 : length;
}

/** A text of the server, cut, with a button for the rest. */
export function data(value, { max = CUT, tag = "span", empty = "–" } = {}) {
    if (value === undefined || value === null || value === "") return h("span", { class: "muted" }, empty);
    const text = String(value);
    if (text.length <= max) return h(tag, { class: "data", tabindex: tag === "pre" ? "0" : null }, visible(text));
    const element = h(
        tag,
        { class: "data", tabindex: tag === "pre" ? "0" : null },
        visible(text.slice(0, cutAt(text, max))),
        "…",
    );
    const button = h(
        "button",
        { type: "button", class: "link", onclick: () => grow(element, button, text) },
        `show all ${text.length.toLocaleString("en")} characters`,
    );
    return h(tag === "pre" ? "div" : "span", { class: "cut" }, element, " ", button);
}

/** All of a long text, in pieces: those that are not on the screen cost no layout. */
function grow(element, button, text) {
    button.remove();
    element.replaceChildren();
    const pieces = h("span", { class: "pieces", tabindex: "0", role: "group", "aria-label": "The whole text" });
    for (let at = 0; at < text.length;) {
        const end = text.length - at > PIECE ? at + cutAt(text.slice(at, at + PIECE), PIECE) : text.length;
        pieces.append(h("span", { class: "piece" }, visible(text.slice(at, end))));
        at = end;
    }
    element.append(pieces);
    pieces.focus();
}

const INDENT_CHARS_MAX = 262144; // a longer text is shown as it came
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** JSON with line breaks. It is not parsed: numbers and repeated members stay as they were sent. */
export function indented(text) {
    if (text.length > INDENT_CHARS_MAX) return text;
    let out = "";
    let depth = 0;
    let isOpened = false; // the last token opened an object or a list
    const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
    for (const [token] of text.matchAll(TOKEN)) {
        const closes = token === "}" || token === "]";
        if (closes) depth--;
        if (isOpened !== closes && (isOpened || closes)) out += line();
        isOpened = token === "{" || token === "[";
        if (isOpened) depth++;
        out += token === "," ? `,${line()}` : token === ":" ? ": " : token;
    }
    return out;
}

/** A text of JSON, or an object. */
export function json(value, max = 4000) {
    const text = typeof value === "string" ? indented(value) : JSON.stringify(value, null, 2);
    return data(text, { max, tag: "pre", empty: "no content" });
}

/** The payload of an item or of a change, as it was sent: it is the last member of the object. */
export function payloadIn(text) {
    const at = text.indexOf('"payload":');
    return at < 0 ? null : text.slice(at + 10, text.lastIndexOf("}")).trim();
}
