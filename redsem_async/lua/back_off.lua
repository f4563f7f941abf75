-- back_off: grant nothing for some time, because an upstream is overloaded, and then up to a ramp.
--
-- The slow start and its doubling are those of TCP (Jacobson, 1988).
--
-- KEYS     as in the head
-- ARGV     pause     in ms from now on; 0 ends the back-off that runs
--          token     of the permit that met the overload. Where it is older than the back-off that
--                    runs, the overload is the same, and only makes the pause longer. '' for one
--                    that is newer in any case
--          number    number of this operation, which runs at most once
--          [key]     whose back-off it is, unless it is that of all requests
-- RETURNS  {tag, next_ms, waiting, own_grants, begun}, begun being 1 where a back-off began
-- USES     load_state, already_ran, allow_writes_at_maxmemory, note_call, ramp_of, keyed,
--          fields, usual_hold, extra_permits, last, now_us, exact, keep, now, SLACK,
--          publish_to, waiting, purge, serve, append, reply_head
--          sets ramp, ramp_changes

local pause, token = tonumber(ARGV[5]), tonumber(ARGV[6]) or math.huge
local number, key = tonumber(ARGV[7]), ARGV[8]

-- The back-off after *before*, when it is over, and whether it began now.
local function begun_or_longer(before)
  local _, runs = ramp_of(before)
  local ends, began, step = string.match(runs and before or '', '^(%d+):(%d+):(%d+)$')
  local later = math.max(tonumber(ends) or 0, now + pause)
  local begins = not runs or token > tonumber(began)
  if begins then
    began = math.max(last, now_us)
    -- The usual hold is in ms times permits; a step is a hold, however many permits a holder has.
    local live, heavy = call('ZCOUNT', holders, '(' .. exact(now), '+inf'), extra_permits()
    step = math.max(1, math.ceil(usual_hold * math.max(1, live) / math.max(1, live + heavy)))
  end
  step = math.max(tonumber(step), math.ceil(pause / 10))
  local text = {}
  for i, value in ipairs({ later, began, step }) do text[i] = exact(value) end
  return table.concat(text, ':'), later + 20 * step, begins
end

load_state()
local begins = false
if not already_ran(number, 'changes') then
  allow_writes_at_maxmemory()
  note_call(number, 'changes')
  local before, after, over = fields[7], nil, now
  if key then before = keyed.back_off_of(key) end
  if pause > 0 then after, over, begins = begun_or_longer(before) end
  if key then
    fields[9] = '1'
    call('HSET', meta, 'back_offs', '1')
    keyed.set_back_off(key, after)
    keyed.keep(over - now)
  elseif after then
    call('HSET', meta, 'back_off', after)
  else
    call('HDEL', meta, 'back_off')
  end
  keep(meta, over - now + SLACK)
  if not key then fields[7], ramp, ramp_changes = after, ramp_of(after) end
  -- What next_ms said was that of another back-off, of none, or of one whose pause was over.
  if begins or pause == 0 or ramp_of(before) > 0 then
    for _, owner in ipairs(waiting > 0 and call('ZRANGE', hubs, 0, -1) or {}) do
      if owner ~= hub then publish_to(owner, 'recheck', '-') end
    end
  end
end
purge()
serve()
return append(reply_head(), { begins and 1 or 0 })
