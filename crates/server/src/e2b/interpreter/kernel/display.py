"""Objects as results: how each shows itself, with the help of IPython, matplotlib and pandas where the box has them."""

import base64
import importlib.machinery
import io
import json
import math
import sys
import traceback

# One line to the host, which refuses those of more than 16 MiB.
MAX_LINE = 12 << 20


def json_safe(value, depth=0):
    """The same as what JSON has: no NaN, only text as keys, nothing that json cannot write."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < 50 and isinstance(value, dict):
        return {str(key): json_safe(item, depth + 1) for key, item in value.items()}
    if depth < 50 and isinstance(value, (list, tuple)):
        return [json_safe(item, depth + 1) for item in value]
    return str(value)


# What an object may show itself as: method, media type, field of a result.
FORMATS = [
    ("_repr_html_", "text/html", "html"),
    ("_repr_markdown_", "text/markdown", "markdown"),
    ("_repr_svg_", "image/svg+xml", "svg"),
    ("_repr_png_", "image/png", "png"),
    ("_repr_jpeg_", "image/jpeg", "jpeg"),
    ("_repr_pdf_", "application/pdf", "pdf"),
    ("_repr_latex_", "text/latex", "latex"),
    ("_repr_json_", "application/json", "json"),
    ("_repr_javascript_", "application/javascript", "javascript"),
]
FIELDS = {media: field for _, media, field in FORMATS}


class Display:
    """Turns objects into results."""

    def __init__(self, channel, output):
        self._channel = channel
        self._output = output
        self._formatter = None

    def use_ipython(self, formatter):
        self._formatter = formatter

    def show(self, *objects, main=False, raw=False, **_):
        """Sends one result for each object; `raw` ones are media types with their data already."""
        for item in objects:
            if raw:
                self.publish(item, main)
                continue
            bundle = self._bundle(item)
            self.publish(bundle, main, self._table(item))
            if is_figure(item):
                sys.modules["matplotlib.pyplot"].close(item)

    def publish(self, bundle, main=False, table=None):
        result, extra = {"type": "result"}, {}
        for media, data in bundle.items():
            if isinstance(data, tuple):  # with metadata beside it
                data = data[0]
            if data is None:
                continue
            if isinstance(data, bytes):
                data = base64.b64encode(data).decode()
            if media == "text/plain":
                result["text"] = unquoted(str(data))
            elif media in FIELDS:
                result[FIELDS[media]] = json_safe(data)
            else:
                extra[str(media)] = json_safe(data)
        if table is not None:
            result["data"] = table
        if extra:
            result["extra"] = extra
        result["is_main_result"] = main
        self._fit(result)
        # What was printed before comes before.
        self._output.drain()
        self._channel.send(result)

    def figures(self):
        """Shows what matplotlib has drawn and not shown yet."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if hasattr(pyplot, "get_fignums") else []:
            figure = pyplot.figure(number)
            if figure.axes or figure.texts:
                self.show(figure)
            pyplot.close(figure)

    def _bundle(self, item):
        if self._formatter is not None:
            bundle = dict(self._formatter(item))
        else:
            bundle = {"text/plain": repr(item)}
            if not isinstance(item, type):
                bundle.update(own_formats(item))
        if "image/png" not in bundle and is_figure(item):
            drawn = io.BytesIO()
            item.savefig(drawn, format="png", bbox_inches="tight")
            bundle["image/png"] = drawn.getvalue()
        return bundle

    @staticmethod
    def _table(item):
        """The columns of a pandas table."""
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(item, getattr(pandas, "DataFrame", ())):
            return None
        try:
            table = json.loads(item.to_json(orient="split", date_format="iso"))
        except Exception:
            return None
        return {str(name): [row[n] for row in table["data"]] for n, name in enumerate(table["columns"])}

    @staticmethod
    def _fit(result):
        """Leaves out what is too large for one line, the largest first, and says so."""
        sizes = {key: len(json.dumps(value)) for key, value in result.items()}
        while sum(sizes.values()) > MAX_LINE:
            largest = max(sizes, key=sizes.get)
            size = sizes.pop(largest)
            if largest == "text":
                result["text"] = result["text"][: MAX_LINE // 16] + f"... ({size} bytes)"
            else:
                del result[largest]
                print(f"the {largest} of a result is left out: it has {size} bytes", file=sys.stderr)


def own_formats(item):
    found = {}
    bundle = getattr(item, "_repr_mimebundle_", None)
    if callable(bundle):
        try:
            told = bundle(include=None, exclude=None)
            found.update(told[0] if isinstance(told, tuple) else told or {})
        except Exception:
            traceback.print_exc()
    for method, media, _ in FORMATS:
        method = getattr(item, method, None)
        if callable(method) and media not in found:
            try:
                told = method()
            except NotImplementedError:
                continue
            except Exception:
                traceback.print_exc()
                continue
            if told is not None:
                found[media] = told
    return found


def unquoted(text):
    """A string's own text rather than how Python would write it, as E2B has it."""
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def is_figure(item):
    module = sys.modules.get("matplotlib.figure")
    drawing = module is not None and "matplotlib.pyplot" in sys.modules
    return drawing and isinstance(item, getattr(module, "Figure", ()))


class AfterPyplot:
    """Waits for matplotlib's import, then draws without a window and makes `show` send what was drawn."""

    def __init__(self, display):
        self._display = display

    def find_spec(self, name, path, target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.switch_backend("agg")
            module.show = lambda *_, **__: self._display.figures()

        spec.loader.exec_module = exec_module
        return spec
