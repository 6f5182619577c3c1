/** The shells with a script. */
export const shells = ['bash', 'zsh', 'fish', 'powershell'] as const
export type Shell = (typeof shells)[number]

/**
 * The script that makes a shell ask `tidings complete -- WORD…`, the words up to the cursor, the last one perhaps
 * empty. Each line of the answer is a candidate, a tab and its description; the single line `:files` means that the
 * shell completes a path.
 */
export const completionScript = (shell: Shell): string => SCRIPTS[shell]

const SCRIPTS: Record<Shell, string> = {
  bash: `# tidings: completion for bash
_tidings() {
  local value text line i width=0 quote=''
  local -a values=() texts=() words=("\${COMP_WORDS[@]:1:COMP_CWORD}")
  local -a command=("\${COMP_WORDS[0]}")
  COMPREPLY=()
  if [[ $1 == npx ]]; then
    if [[ \${words[0]} != tidings || COMP_CWORD -lt 2 ]]; then
      compopt -o default
      return
    fi
    command=(npx --no tidings)
    words=("\${words[@]:1}")
  fi
  case \${COMP_WORDS[COMP_CWORD]} in [\\"\\']*) quote=yes ;; esac
  # A name is asked for as it is, without what quotes it.
  for i in "\${!words[@]}"; do
    value=\${words[i]//\\\\/}
    value=\${value#[\\"\\']}
    words[i]=\${value%[\\"\\']}
  done
  while IFS=$'\\t' read -r value text; do
    if [[ $value == :files ]]; then
      compopt -o default
      return
    fi
    values+=("$value")
    texts+=("\${text:+($text)}")
    (( \${#value} > width )) && width=\${#value}
  done < <("\${command[@]}" complete -- "\${words[@]}" 2>/dev/null)
  if [[ $COMP_TYPE == 63 && \${#values[@]} -gt 1 ]]; then
    # A listing, which inserts nothing, can say what each is.
    for i in "\${!values[@]}"; do
      printf -v line '%-*s  %s' "$width" "\${values[i]}" "\${texts[i]}"
      COMPREPLY+=("$line")
    done
  else
    for value in "\${values[@]}"; do
      # What the shell would take apart is quoted, unless a quote is open.
      [[ -z $quote && $value == *[!A-Za-z0-9_.,:/=@%+-]* ]] && printf -v value '%q' "$value"
      COMPREPLY+=("$value")
    done
  fi
  [[ \${#values[@]} == 1 && \${values[0]} == *[=,] ]] && compopt -o nospace
}
# Old ones, such as the bash of macOS, know no nosort.
complete -o nosort -F _tidings tidings 2>/dev/null || complete -F _tidings tidings
complete -p npx >/dev/null 2>&1 || complete -F _tidings npx
`,
  zsh: `#compdef tidings
# tidings: completion for zsh
_tidings() {
  local line value text
  local -a candidates command
  local -i first=2
  command=("\${words[1]}")
  if [[ \${words[1]} == npx ]]; then
    if [[ \${words[2]} != tidings || CURRENT -lt 3 ]]; then
      _default
      return
    fi
    command=(npx --no tidings)
    first=3
  fi
  for line in "\${(@f)$("\${command[@]}" complete -- "\${(@Q)words[first,CURRENT]}" 2>/dev/null)}"; do
    [[ -z $line ]] && continue
    if [[ $line == :files ]]; then
      _files
      return
    fi
    value=\${line%%$'\\t'*}
    text=\${line#*$'\\t'}
    candidates+=("\${value//:/\\\\:}\${text:+:$text}")
  done
  _describe -V tidings candidates
}
if [[ $funcstack[1] == _tidings ]]; then
  _tidings "$@"
else
  # Without a .zshrc that did it, completion is not set up yet.
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i -D }
  compdef _tidings tidings
  (( \${+_comps[npx]} )) || compdef _tidings npx
fi
`,
  fish: `# tidings: completion for fish
function __tidings_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct | string unescape)
    set -l command $words[1]
    set -e words[1]
    if test "$command" = npx
        set command npx --no tidings
        set -e words[1]
    end
    set -l lines ($command complete -- $words "$current" 2>/dev/null)
    if test "$lines" = :files
        __fish_complete_path "$current"
    else
        printf '%s\\n' $lines
    end
end
complete -c tidings -f -k -a '(__tidings_complete)'
complete -c npx -n '__fish_seen_subcommand_from tidings' -f -k -a '(__tidings_complete)'
`,
  // Windows PowerShell drops empty arguments when it starts a program; --empty stands for one.
  powershell: `# tidings: completion for PowerShell
Register-ArgumentCompleter -Native -CommandName tidings -ScriptBlock {
  param($wordToComplete, $commandAst, $cursorPosition)
  $words = @($commandAst.CommandElements | Select-Object -Skip 1 |
    Where-Object { $_.Extent.StartOffset -lt $cursorPosition } | ForEach-Object { $_.ToString().Trim('"', "'") })
  $empty = if ($wordToComplete -eq '') { @('--empty') } else { @() }
  & tidings complete @empty -- @words 2>$null | ForEach-Object {
    $value, $text = $_ -split "\`t", 2
    if ($value -ne ':files') {
      if (-not $text) { $text = $value }
      $inserted = if ($value -match '\\s') { "'$value'" } else { $value }
      [System.Management.Automation.CompletionResult]::new($inserted, $value, 'ParameterValue', $text)
    }
  }
}
`,
}
