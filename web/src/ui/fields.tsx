/** Fields of forms and toolbars, each with its label. */
import type { JSX, Ref } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";

export interface Choice {
  value: string;
  label: string;
}

/** Searches while somebody types; the address changes only after a short rest. */
export function SearchField(props: {
  label: string;
  value: string;
  hint?: string;
  inputRef?: Ref<HTMLInputElement>;
  onInput: (text: string) => void;
}): JSX.Element {
  const [text, setText] = useState(props.value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(props.value), [props.value]);
  const change = (value: string, wait: number) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => props.onInput(value), wait);
  };
  return (
    <label class="search-field">
      <Icon name="search" size={14} />
      <span class="hidden">{props.label}</span>
      <input
        type="search"
        ref={props.inputRef ?? null}
        value={text}
        placeholder={props.label}
        spellcheck={false}
        autocomplete="off"
        onInput={(event) => change(event.currentTarget.value, 120)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          if (text) change("", 0);
          else event.currentTarget.blur();
        }}
      />
      {props.hint && !text && <span class="key">{props.hint}</span>}
    </label>
  );
}

export function Select(props: {
  label: string;
  value: string;
  choices: Choice[];
  visibleLabel?: boolean;
  onPick: (value: string) => void;
}): JSX.Element {
  return (
    <label class="select">
      <span class={props.visibleLabel ? "field-label" : "hidden"}>{props.label}</span>
      <select value={props.value} title={props.label} onChange={(event) => props.onPick(event.currentTarget.value)}>
        {props.choices.map((choice) => (
          <option key={choice.value} value={choice.value} selected={choice.value === props.value}>
            {choice.label}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Two or three choices side by side, one of them pressed. */
export function Segments(props: { label: string; value: string; choices: Choice[]; onPick: (value: string) => void }) {
  return (
    <fieldset class="segments">
      <legend class="hidden">{props.label}</legend>
      {props.choices.map((choice) => (
        <button
          key={choice.value}
          type="button"
          aria-pressed={choice.value === props.value}
          onClick={() => props.onPick(choice.value)}
        >
          {choice.label}
        </button>
      ))}
    </fieldset>
  );
}

export function Field(props: {
  label: string;
  value: string;
  placeholder?: string;
  list?: string[];
  required?: boolean;
  inputMode?: "numeric" | "text";
  onInput: (value: string) => void;
}): JSX.Element {
  const id = `list-${props.label.replace(/\W/g, "-")}`;
  return (
    <label class="field">
      <span class="field-label">{props.label}</span>
      <input
        value={props.value}
        placeholder={props.placeholder ?? ""}
        list={props.list ? id : undefined}
        required={props.required}
        inputMode={props.inputMode}
        spellcheck={false}
        autocomplete="off"
        onInput={(event) => props.onInput(event.currentTarget.value)}
      />
      {props.list && (
        <datalist id={id}>
          {props.list.map((value) => (
            <option key={value} value={value} />
          ))}
        </datalist>
      )}
    </label>
  );
}
