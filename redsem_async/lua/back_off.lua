-- back_off: grant nothing for some time, because an upstream is overloaded, and then up to a ramp.
--
-- ARGV     pause     in ms from now on; 0 ends the back-off that runs
--          token     of the permit that met the overload. Where it is older than the back-off that
--                    runs, the overload is the same, and only makes the pause longer. '' for one
--                    that is newer in any case
--          number    number of this operation, which runs at most once
--          by        who begins it, as a text
--          [key]     whose back-off it is, unless it is that of all requests
-- RETURNS  {tag, next_ms, waiting, own_grants, begun}, begun being 1 where a back-off began

local pause, token = tonumber(ARGV[5]), tonumber(ARGV[6]) or math.huge
local number, by, key = tonumber(ARGV[7]), ARGV[8], ARGV[9]

-- The back-off after *before*, when it is over, and whether it began now.
local function begun_or_longer(before)
  local _, runs = ramp_of(before)
  local ends, began, step, beginner =
    string.match(runs and before or '', '^(%d+):(%d+):(%d+):(.*)$')
  local later = math.max(tonumber(ends) or 0, now + pause)
  local begins = not runs or token > tonumber(began)
  if begins then
    began, beginner = math.max(state.counter, now_us), by
    -- The usual hold is in ms times permits; a step is a hold, however many permits a holder has.
    local live = math.max(1, call('ZCOUNT', holders, '(' .. exact(now), '+inf'))
    step = math.max(1, math.ceil(usual_hold * live / (live + state.heavy)))
  end
  step = math.max(tonumber(step), math.ceil((later - now) / 10))
  local text = table.concat({ exact(later), exact(began), exact(step), beginner }, ':')
  return text, later + 20 * step, begins
end

load_state()
local begins = false
if not already_ran(number, 'changes') then
  allow_writes_at_maxmemory()
  note_call(number, 'changes')
  local before, after, over = state.back_off, nil, now
  if key then before = keyed.back_off_of(key) end
  if pause > 0 then after, over, begins = begun_or_longer(before) end
  if key then
    keyed.set_back_off(key, after)
  elseif after then
    call('HSET', meta, 'back_off', after)
  else
    call('HDEL', meta, 'back_off')
  end
  keep(meta, over - now + SLACK)
  if not key then
    state.back_off = after
    state.ramp, state.ramp_changes = ramp_of(after)
  end
  -- What next_ms said was that of another back-off, of none, or of one whose pause was over.
  if begins or pause == 0 or ramp_of(before) > 0 then
    for _, owner in ipairs(state.waiting > 0 and call('ZRANGE', hubs, 0, -1) or {}) do
      if owner ~= hub then publish_to(owner, 'recheck', '-') end
    end
  end
end
purge()
serve()
return append(reply_head(), { begins and 1 or 0 })
